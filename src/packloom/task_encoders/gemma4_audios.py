"""Settings of a Gemma 4 feature extractor in; the rule of the audio of Gemma 4 out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from torch import Tensor

from packloom.errors import CapabilityError, MediaError
from packloom.task_encoders.audio_settings import make_extractor
from packloom.task_encoders.family import ImageLayout
from packloom.task_encoders.processors import ProcessorParts
from packloom.task_encoders.settings_images import named_token

#: Clips of a batch have as many frames as the longest; the mask says which are theirs.
MEDIA_JOINS = {"input_features": "pad_tiles", "input_features_mask": "pad_tiles"}
#: The extractor's own default, which no setting changes: half a minute at 16 kHz.
_MOST_SAMPLES = 480_000


@dataclass(frozen=True, kw_only=True)
class Gemma4AudioRule:
    """Mel features of any length up to half a minute; two convolutions of stride 2 leave a quarter of the frames."""

    extractor: Any = field(repr=False)  # a Gemma4AudioFeatureExtractor
    token: str
    start_token: str
    end_token: str
    model_keys: tuple[str, ...] = ("input_features", "input_features_mask")

    @classmethod
    def from_parts(cls, parts: ProcessorParts) -> Gemma4AudioRule:
        """Raises CapabilityError for an extractor that this does not hold for, ProcessorError for unnamed tokens."""
        extractor = make_extractor(parts.name, parts.audio_settings, kind="Gemma4AudioFeatureExtractor")
        if extractor.dither:
            raise CapabilityError(f"{parts.name}: dither {extractor.dither} draws noise from numpy's global generator")
        if extractor.padding_side != "right":
            raise CapabilityError(f"{parts.name}: padding_side is {extractor.padding_side!r}, right is needed")
        return cls(
            extractor=extractor,
            token=named_token(parts, "audio_token"),
            start_token=named_token(parts, "boa_token"),
            end_token=named_token(parts, "eoa_token"),
        )

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
        """The extractor cuts what is longer."""
        return _MOST_SAMPLES

    def measure(self, name: str, num_samples: int) -> ImageLayout:
        """The layout of so many samples at the model's rate; raises MediaError for too few."""
        # A frame counts where all of its samples, and the one behind it, are the clip's; half of the first is silence.
        least = self.extractor.frame_length + 1 - self.extractor.frame_length // 2
        if num_samples < least:
            raise MediaError(
                f"{name} is too short: {num_samples} samples at {self.rate} Hz, and a token needs at least {least}",
                code="media.too_short",
            )
        tokens = _tokens((num_samples - least) // self.extractor.hop_length + 1)
        text = f"{self.start_token}{self.token}{self.end_token}"
        return ImageLayout(kind="audio", text=text, runs=(tokens,), num_patches=tokens)

    def process(self, waves: Sequence[np.ndarray]) -> dict[str, Tensor]:
        """``input_features`` [I, frames, mel bins] float32, ``input_features_mask`` [I, frames] bool."""
        made = self.extractor(list(waves), return_tensors="pt")
        return {name: made[name] for name in self.model_keys}

    def produced(self, tensors: dict[str, Tensor], index: int) -> int:
        """The tokens that the features of one audio become in the model."""
        return _tokens(int(tensors["input_features_mask"][index].sum()))


def _tokens(frames: int) -> int:
    """Source: ``replace_audio_token`` of the processor in transformers 5.24, which takes every fourth frame's mask."""
    return -(-frames // 4)
