"""A loaded LLaVA-OneVision processor and the video settings in, the rule of its videos out."""

from __future__ import annotations

import math
from functools import partial

from packloom.config_video import VideoConfig
from packloom.errors import CapabilityError
from packloom.task_encoders.frame_sampling import UNBOUNDED, equal_steps
from packloom.task_encoders.frame_videos import CLIP_FRAMES, FrameVideoRule, one_size
from packloom.task_encoders.image_backends import pixel_table
from packloom.task_encoders.processors import ProcessorParts
from packloom.task_encoders.settings_images import fixed_size, named_token, processor_setting
from packloom.task_encoders.video_processors import frame_resize, needs_processor
from packloom.task_encoders.video_sampling import sampling_of
from packloom.task_encoders.video_settings import refuse_bounds, refuse_unresized, with_defaults
from packloom.types import Frames


def onevision_video_rule(parts: ProcessorParts, config: VideoConfig) -> FrameVideoRule:
    """One run of tokens: each frame's, pooled two by two, and a newline at the end.

    Raises CapabilityError for a rate: the model takes clips of equally many frames in one call.
    """
    refuse_bounds(config, "llava_onevision")
    found = with_defaults(parts.video_settings, CLIP_FRAMES)
    refuse_unresized(found, parts.name)
    side = fixed_size(found.size, "size of videos", parts)
    sampling = sampling_of(
        config, fps=found.fps, num_frames=found.num_frames, min_frames=1, max_frames=UNBOUNDED, group=1
    )
    if sampling.fps is not None:
        raise CapabilityError(
            f"{parts.name}: LLaVA-OneVision takes clips of equally many frames in one call, so a rate of"
            f" {sampling.fps} frames per second cannot be batched: set video.num_frames instead"
        )
    if (resize := frame_resize(found)) is None:
        raise needs_processor("its videos are resized by a filter that this torch lacks", parts.name)
    tokens = processor_setting(parts, "num_image_tokens")
    pooled = math.ceil(math.isqrt(tokens) / 2) ** 2
    token = named_token(parts, "video_token", str(parts.settings.get("video_token") or "<video>"))
    return FrameVideoRule(
        placeholder=token,
        token=token,
        class_name="LlavaOnevisionVideoProcessor",
        write=partial(_written, token),
        runs=partial(_run, pooled),
        sizes=partial(one_size, side),
        side=side,
        patches=tokens,
        sampling=sampling,
        sampling_rule=equal_steps,
        resize=resize,
        table=pixel_table(found, "torchvision"),
        key="pixel_values_videos",
        batched=True,
    )


def _written(token: str, frames: Frames) -> str:
    return token


def _run(pooled: int, count: int) -> tuple[int, ...]:
    return (count * pooled + 1,)
