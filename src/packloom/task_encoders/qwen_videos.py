"""A loaded Qwen-VL processor and the video settings in, the rule of its videos out."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from types import SimpleNamespace
from typing import Any

from transformers.image_utils import IMAGENET_STANDARD_MEAN, IMAGENET_STANDARD_STD, OPENAI_CLIP_MEAN, OPENAI_CLIP_STD

from packloom.config_video import VideoConfig
from packloom.errors import CapabilityError, ConfigError
from packloom.task_encoders.grid_images import GridImageRule
from packloom.task_encoders.grid_videos import GridVideoRule, Sizing, fit_volume
from packloom.task_encoders.image_backends import mode_of, pixel_table
from packloom.task_encoders.pixel_resize import resize_pixels
from packloom.task_encoders.processors import ProcessorParts
from packloom.task_encoders.video_sampling import even_ends, sampling_of, whole_groups
from packloom.task_encoders.video_settings import refuse_unresized, with_defaults

VIDEO_TOKEN = "<|video_pad|>"
_START, _END = "<|vision_start|>", "<|vision_end|>"

#: What every video processor of transformers does unless its settings say otherwise.
COMMON: Mapping[str, Any] = {
    "do_resize": True,
    "do_rescale": True,
    "do_normalize": True,
    "rescale_factor": 1 / 255,
    "resample": 3,  # bicubic
    "temporal_patch_size": 2,
    "merge_size": 2,
    "fps": 2.0,
    "min_frames": 4,
    "max_frames": 768,
}
#: ``Qwen2VLVideoProcessor``; its class has no rate, the one here is the model authors'.
_QWEN2 = {
    **COMMON,
    "image_mean": OPENAI_CLIP_MEAN,
    "image_std": OPENAI_CLIP_STD,
    "size": {"shortest_edge": 128 * 28 * 28, "longest_edge": 28 * 28 * 768},
    "min_pixels": None,
    "max_pixels": None,
    "patch_size": 14,
    "max_video_tokens": 128_000,
}
#: ``Qwen3VLVideoProcessor``
_QWEN3 = {
    **COMMON,
    "image_mean": IMAGENET_STANDARD_MEAN,
    "image_std": IMAGENET_STANDARD_STD,
    "size": {"shortest_edge": 128 * 32 * 32, "longest_edge": 32 * 32 * 768},
    "patch_size": 16,
    "max_video_tokens": 768,
}
#: Of Qwen2.5-VL's configuration class, and of its released checkpoints, for a processor that comes without config.json.
_TOKENS_PER_SECOND, _RELEASED = 4, 2


def qwen2_video_rule(parts: ProcessorParts, config: VideoConfig) -> GridVideoRule:
    """Qwen2-VL: one run of tokens, one step of positions for each temporal patch."""
    found = with_defaults(parts.video_settings, _QWEN2)
    bounds = dict(found.size)
    if found.min_pixels is not None:
        bounds["shortest_edge"] = found.min_pixels
    if found.max_pixels is not None:
        bounds["longest_edge"] = found.max_pixels
    low, high = pixel_bounds_of(bounds, config)
    image = GridImageRule(
        placeholder=VIDEO_TOKEN,
        token=VIDEO_TOKEN,
        patch_size=found.patch_size,
        merge_size=found.merge_size,
        min_pixels=low,
        max_pixels=high,
    )
    sizing = _FrameSize(
        image=image,
        depth=found.temporal_patch_size,
        most_tokens=found.max_video_tokens if config.cap_pixels_per_frame else None,
    )
    return replace(
        video_rule_of(parts, config, found, sizing, class_name="Qwen2VLVideoProcessor"),
        sampling_rule=whole_groups,
        reference_positions=config.rules == "reference",
        options={"size": edges(low, high), "cap_pixels_per_frame": config.cap_pixels_per_frame},
    )


def qwen2_5_video_rule(parts: ProcessorParts, config: VideoConfig) -> GridVideoRule:
    """Qwen2.5-VL: as Qwen2-VL, with positions that follow the seconds between temporal patches."""
    vision = parts.config.get("vision_config")
    missing = _TOKENS_PER_SECOND if isinstance(vision, Mapping) else _RELEASED
    rate = vision.get("tokens_per_second", missing) if isinstance(vision, Mapping) else missing
    return replace(qwen2_video_rule(parts, config), seconds_key="second_per_grid_ts", tokens_per_second=float(rate))


def qwen3_video_rule(parts: ProcessorParts, config: VideoConfig) -> GridVideoRule:
    """Qwen3-VL and Qwen3.5: each temporal patch behind the mean time of its first and last frame."""
    found = with_defaults(parts.video_settings, _QWEN3)
    sizing = volume_size_of(found, config, found.max_video_tokens if config.cap_pixels_per_frame else None)
    # transformers since 5.3 leaves the template's own marks around all frames; the models were trained without them
    placeholder = VIDEO_TOKEN if config.rules == "transformers" else _START + VIDEO_TOKEN + _END
    return replace(
        video_rule_of(parts, config, found, sizing, class_name="Qwen3VLVideoProcessor"),
        placeholder=placeholder,
        sampling_rule=even_ends,
        whole_patches=True,
        stamp=_mean_time,
        options={
            "size": edges(sizing.min_pixels, sizing.max_pixels),
            "cap_pixels_per_frame": config.cap_pixels_per_frame,
        },
    )


def edges(low: int, high: int) -> dict[str, int]:
    """The size that the processors of Qwen and GLM are called with."""
    return {"shortest_edge": low, "longest_edge": high}


def _mean_time(first: float, last: float) -> str:
    return f"<{(first + last) / 2:.1f} seconds>{_START}{VIDEO_TOKEN}{_END}"


def pixel_bounds_of(size: Mapping[str, Any], config: VideoConfig) -> tuple[int, int]:
    """The processor's bounds where the settings have none; raises ConfigError, CapabilityError for another kind."""
    if not size.get("shortest_edge") or not size.get("longest_edge"):
        raise CapabilityError(f"the video processor's size is {dict(size)}: it must name shortest_edge, longest_edge")
    low = size["shortest_edge"] if config.min_pixels is None else config.min_pixels
    high = size["longest_edge"] if config.max_pixels is None else config.max_pixels
    if low > high:
        raise ConfigError(f"video.min_pixels {low} is above video.max_pixels {high}: set both")
    return int(low), int(high)


def volume_size_of(found: SimpleNamespace, config: VideoConfig, most_tokens: int | None = None) -> VolumeSize:
    """The sizing of a processor that bounds all frames together."""
    low, high = pixel_bounds_of(found.size, config)
    return VolumeSize(
        depth=found.temporal_patch_size,
        factor=found.patch_size * found.merge_size,
        min_pixels=low,
        max_pixels=high,
        most_tokens=most_tokens,
    )


def video_rule_of(
    parts: ProcessorParts, config: VideoConfig, found: SimpleNamespace, sizing: Sizing, *, class_name: str
) -> GridVideoRule:
    """What the families have in common; the pixels are those of torchvision's backend, the only one for videos.

    Raises CapabilityError for settings that would leave pixels as they are.
    """
    refuse_unresized(found, parts.name)
    return GridVideoRule(
        class_name=class_name,
        placeholder=VIDEO_TOKEN,
        token=VIDEO_TOKEN,
        patch_size=found.patch_size,
        merge_size=found.merge_size,
        temporal_patch_size=found.temporal_patch_size,
        sampling=sampling_of(
            config,
            fps=found.fps,
            min_frames=found.min_frames,
            max_frames=found.max_frames,
            group=found.temporal_patch_size,
        ),
        sampling_rule=even_ends,
        sizing=sizing,
        resize=partial(resize_pixels, mode=mode_of(found)),
        table=pixel_table(found, "torchvision"),
    )


@dataclass(frozen=True, kw_only=True)
class _FrameSize:
    """Each frame within the pixel bounds of an image; ``most_tokens`` bounds them all together."""

    image: GridImageRule
    depth: int
    most_tokens: int | None

    def __call__(self, frames: int, height: int, width: int) -> tuple[int, int]:
        rule = self.image
        if self.most_tokens is not None:
            factor = rule.patch_size * rule.merge_size
            share = int(self.most_tokens * factor * factor * 0.9) * self.depth // frames
            rule = replace(rule, max_pixels=max(min(rule.max_pixels, share), int(rule.min_pixels * 1.05)))
        return rule.resized(height, width)


@dataclass(frozen=True, kw_only=True)
class VolumeSize:
    """All frames together within the pixel bounds; ``most_tokens`` bounds each of them."""

    depth: int
    factor: int
    min_pixels: int
    max_pixels: int
    most_tokens: int | None = None

    def __call__(self, frames: int, height: int, width: int) -> tuple[int, int]:
        most = self.max_pixels
        if self.most_tokens is not None:
            cap = self.most_tokens * self.factor**2
            most = max(min(cap, self.max_pixels // frames), int(self.min_pixels * 1.05)) * frames
        return fit_volume(
            frames,
            height,
            width,
            depth=self.depth,
            factor=self.factor,
            min_pixels=self.min_pixels,
            max_pixels=most,
        )
