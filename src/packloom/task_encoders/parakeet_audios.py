"""Settings of a Parakeet feature extractor in; the rule of the audio of Nemotron-3-Nano-Omni out."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from torch import Tensor

from packloom.errors import MediaError, ProcessorError
from packloom.task_encoders.audio_settings import make_extractor
from packloom.task_encoders.family import ImageLayout
from packloom.task_encoders.processors import ProcessorParts

AUDIO_TOKENS = ("<so_start>", "<so_embedding>", "<so_end>")
#: Clips of a batch have as many frames as the longest; the mask says which are theirs.
MEDIA_JOINS = {"input_features": "pad_tiles", "input_features_mask": "pad_tiles"}
#: The features are normalised by their variance over time, which one frame has not.
_LEAST_FRAMES = 2


@dataclass(frozen=True, kw_only=True)
class ParakeetAudioRule:
    """Mel features of any length; each of ``num_halvings`` convolutions of stride 2 leaves half of the frames."""

    extractor: Any = field(repr=False)  # a ParakeetFeatureExtractor
    num_halvings: int
    token: str = AUDIO_TOKENS[1]
    model_keys: tuple[str, ...] = ("input_features", "input_features_mask")

    @classmethod
    def from_parts(cls, parts: ProcessorParts) -> ParakeetAudioRule:
        """Raises CapabilityError for another extractor, ProcessorError for settings that contradict one another."""
        extractor = make_extractor(parts.name, parts.audio_settings, kind="ParakeetFeatureExtractor")
        factor = parts.settings.get("audio_subsampling_factor", 8)
        if not isinstance(factor, int) or factor < 1 or factor & (factor - 1):
            raise ProcessorError(f"{parts.name}: audio_subsampling_factor is {factor!r}, expected a power of two")
        for name, own in (("audio_hop_length", "hop_length"), ("audio_sampling_rate", "sampling_rate")):
            if parts.settings.get(name, getattr(extractor, own)) != getattr(extractor, own):
                raise ProcessorError(
                    f"{parts.name}: the processor's {name} is {parts.settings[name]}, its feature extractor's {own} is"
                    f" {getattr(extractor, own)}: it would count other tokens than the model makes"
                )
        return cls(extractor=extractor, num_halvings=factor.bit_length() - 1)

    @property
    def placeholder(self) -> str:
        """One audio token."""
        return self.token

    @property
    def rate(self) -> int:
        """Samples per second that the model takes."""
        return int(self.extractor.sampling_rate)

    @property
    def max_samples(self) -> int:
        """The extractor has no bound."""
        return sys.maxsize

    def measure(self, name: str, num_samples: int) -> ImageLayout:
        """The layout of so many samples at the model's rate; raises MediaError for too few."""
        frames = num_samples // self.extractor.hop_length
        if frames < _LEAST_FRAMES:
            raise MediaError(
                f"{name} is too short: {num_samples} samples at {self.rate} Hz, and features need at least"
                f" {_LEAST_FRAMES * self.extractor.hop_length}",
                code="media.too_short",
            )
        tokens = self._tokens(frames)
        return ImageLayout(kind="audio", text="".join(AUDIO_TOKENS), runs=(tokens,), num_patches=tokens)

    def _tokens(self, frames: int) -> int:
        """Source: ``_estimate_audio_num_embeddings`` of the processor in transformers 5.24, kernel 3 and padding 1.

        The features have a frame more than their mask counts, and the model takes it in too.
        """
        length = frames + 1
        for _ in range(self.num_halvings):
            length = (length - 1) // 2 + 1
        return length

    def process(self, waves: Sequence[np.ndarray]) -> dict[str, Tensor]:
        """``input_features`` [I, frames, mel bins] float32, ``input_features_mask`` [I, frames] bool."""
        made = self.extractor(list(waves), sampling_rate=self.rate, return_tensors="pt")
        return {"input_features": made["input_features"], "input_features_mask": made["attention_mask"]}

    def produced(self, tensors: dict[str, Tensor], index: int) -> int:
        """The tokens that the features of one audio become in the model."""
        return self._tokens(int(tensors["input_features_mask"][index].sum()))
