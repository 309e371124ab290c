"""Settings of a Whisper feature extractor in; the rule of the audio of the families that use one, out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor

from packloom.errors import CapabilityError, MediaError
from packloom.task_encoders.audio_settings import make_extractor
from packloom.task_encoders.family import ImageLayout
from packloom.task_encoders.processors import ProcessorParts


@dataclass(frozen=True, kw_only=True)
class WhisperAudioRule:
    """Mel features of Qwen2-Audio and Qwen2.5-Omni: two convolutions and a pooling leave a token for four frames.

    ``hears_padding``: the model's encoder runs over the whole window, whatever an audio fills of it.
    """

    placeholder: str
    token: str
    extractor: Any = field(repr=False)  # a WhisperFeatureExtractor
    hears_padding: bool
    least_tokens: int = 1
    model_keys: tuple[str, ...] = ("input_features", "feature_attention_mask")

    @property
    def rate(self) -> int:
        """Samples per second that the model takes."""
        return int(self.extractor.sampling_rate)

    @property
    def max_samples(self) -> int:
        """What the extractor takes; it drops what is beyond."""
        return int(self.extractor.n_samples)

    def measure(self, name: str, num_samples: int) -> ImageLayout:
        """The layout of so many samples at the model's rate; raises MediaError for too few."""
        frames = -(-num_samples // self.extractor.hop_length)
        tokens = audio_tokens(frames)
        if tokens < self.least_tokens:
            needed = next(count for count in range(1, 99) if audio_tokens(count) >= self.least_tokens)
            raise MediaError(
                f"{name} is too short: {num_samples} samples at {self.rate} Hz give {max(tokens, 0)} tokens, and the"
                f" model needs {self.least_tokens}: more than {(needed - 1) * self.extractor.hop_length} samples",
                code="media.too_short",
            )
        heard = self.extractor.nb_max_frames if self.hears_padding else frames
        return ImageLayout(kind="audio", text=self.token, runs=(tokens,), num_patches=_after_convolution(heard))

    def process(self, waves: Sequence[np.ndarray]) -> dict[str, Tensor]:
        """``input_features`` [I, mel bins, frames] float32, ``feature_attention_mask`` [I, frames] int32."""
        step, window = self.extractor.hop_length, self.max_samples
        if not self.hears_padding:  # silence is the same all through, so a second of it does for 300
            window = min(window, -(-(max(map(len, waves)) + self.rate) // step) * step)
        made = self.extractor(
            list(waves),
            sampling_rate=self.rate,
            padding="max_length",
            max_length=window,
            return_attention_mask=True,
            return_tensors="pt",
        )
        features, mask = made["input_features"], made["attention_mask"]
        if missing := self.extractor.nb_max_frames - features.shape[-1]:
            features = torch.cat((features, features[..., -1:].expand(-1, -1, missing)), dim=-1)
            mask = torch.cat((mask, mask.new_zeros(len(mask), missing)), dim=-1)
        return {"input_features": features, "feature_attention_mask": mask}

    def produced(self, tensors: dict[str, Tensor], index: int) -> int:
        """The tokens that the features of one audio become in the model."""
        return audio_tokens(int(tensors["feature_attention_mask"][index].sum()))


def audio_tokens(frames: int) -> int:
    """Placeholder tokens of an audio of so many mel frames.

    Source: ``_get_feat_extract_output_lengths`` of Qwen2-Audio's encoder and of Qwen2.5-Omni's processor in
    transformers 5.24: a convolution of stride 2, then a pooling of 2.
    """
    return (_after_convolution(frames) - 2) // 2 + 1


def _after_convolution(frames: int) -> int:
    return (frames - 1) // 2 + 1


def whisper_extractor(parts: ProcessorParts) -> Any:
    """The feature extractor of a processor; raises CapabilityError for one that this rule does not hold for."""
    extractor = make_extractor(parts.name, parts.audio_settings, kind="WhisperFeatureExtractor")
    if extractor.dither:
        raise CapabilityError(f"{parts.name}: dither {extractor.dither} draws noise from torch's global generator")
    if extractor.n_samples % extractor.hop_length or extractor.padding_side != "right":
        raise CapabilityError(
            f"{parts.name}: its window of {extractor.n_samples} samples must be whole steps of {extractor.hop_length},"
            f" padded on the right, got padding_side {extractor.padding_side!r}"
        )
    return extractor
