"""A loaded GLM-V processor and the video settings in, the rule of its videos out."""

from __future__ import annotations

from dataclasses import replace

from transformers.image_utils import OPENAI_CLIP_MEAN, OPENAI_CLIP_STD

from packloom.config_video import VideoConfig
from packloom.task_encoders.glm_images import IMAGE_TOKEN
from packloom.task_encoders.grid_videos import GridVideoRule
from packloom.task_encoders.processors import ProcessorParts
from packloom.task_encoders.qwen_videos import COMMON, edges, video_rule_of, volume_size_of
from packloom.task_encoders.settings_images import named_token
from packloom.task_encoders.video_sampling import by_duration, from_start
from packloom.task_encoders.video_settings import refuse_cap, with_defaults

#: ``Glm4vVideoProcessor`` and ``Glm46VVideoProcessor``: clips are bounded by their seconds, not by frames.
_GLM = {
    **COMMON,
    "image_mean": OPENAI_CLIP_MEAN,
    "image_std": OPENAI_CLIP_STD,
    "size": {"shortest_edge": 112 * 112, "longest_edge": 28 * 28 * 2 * 30_000},
    "patch_size": 14,
    "max_duration": 300,
    "min_frames": 1,
    "max_frames": 1 << 30,
}


def glm4v_video_rule(parts: ProcessorParts, config: VideoConfig) -> GridVideoRule:
    """GLM-4.1V: each temporal patch as an image, behind it the whole seconds of its first frame."""
    found = with_defaults(parts.video_settings, _GLM)
    refuse_cap(config, "glm4v")
    sizing = volume_size_of(found, config)
    rule = video_rule_of(parts, config, found, sizing, class_name="Glm4vVideoProcessor")
    return replace(
        rule,
        options={"size": edges(sizing.min_pixels, sizing.max_pixels)},
        placeholder=named_token(parts, "video_token", "<|video|>"),
        token=named_token(parts, "image_token", IMAGE_TOKEN),
        sampling=replace(rule.sampling, max_seconds=float(found.max_duration)),
        sampling_rule=from_start,
        whole_patches=True,
        stamp=_whole_seconds,
    )


def glm46v_video_rule(parts: ProcessorParts, config: VideoConfig) -> GridVideoRule:
    """GLM-4.6V: tenths of seconds, and a rate that depends on the clip's length. GLM-4.5V has the processor of 4.1V."""
    if parts.processor_class == "Glm4vProcessor":
        return glm4v_video_rule(parts, config)
    rule = glm4v_video_rule(parts, config)
    sampling = replace(rule.sampling, fps=config.fps)
    return replace(rule, class_name="Glm46VVideoProcessor", sampling=sampling, sampling_rule=by_duration, stamp=_tenths)


def _whole_seconds(first: float, last: float) -> str:
    return f"<|begin_of_image|>{IMAGE_TOKEN}<|end_of_image|>{int(first)}"


def _tenths(first: float, last: float) -> str:
    return f"<|begin_of_image|>{IMAGE_TOKEN}<|end_of_image|>{first:.1f} seconds"
