"""A loaded InternVL processor and the video settings in, the rule of its videos out."""

from __future__ import annotations

import logging
from functools import partial

from packloom.config_video import VideoConfig
from packloom.task_encoders.frame_sampling import UNBOUNDED, middles
from packloom.task_encoders.frame_videos import CLIP_FRAMES, FrameVideoRule, one_run_each, one_size
from packloom.task_encoders.image_backends import pixel_table
from packloom.task_encoders.internvl_images import InternVLImageRule
from packloom.task_encoders.processors import ProcessorParts
from packloom.task_encoders.settings_images import fixed_size, named_token
from packloom.task_encoders.video_processors import frame_resize, needs_processor
from packloom.task_encoders.video_sampling import sampling_of
from packloom.task_encoders.video_settings import refuse_bounds, refuse_unresized, with_defaults
from packloom.types import Frames

logger = logging.getLogger(__name__)


def internvl_video_rule(parts: ProcessorParts, config: VideoConfig) -> FrameVideoRule:
    """Each frame as an image of one tile, behind its number."""
    refuse_bounds(config, "internvl")
    found = with_defaults(parts.video_settings, {**CLIP_FRAMES, "initial_shift": True})
    refuse_unresized(found, parts.name)
    side = fixed_size(found.size, "size of videos", parts)
    images = InternVLImageRule.from_parts(parts)
    if config != VideoConfig():
        _check_side(side, images, parts)
    if (resize := frame_resize(found)) is None:
        raise needs_processor("its videos are resized by a filter that this torch lacks", parts.name)
    picture = f"{images.start_token}{images.token}{images.end_token}"
    return FrameVideoRule(
        placeholder=named_token(parts, "video_token", "<video>"),
        token=images.token,
        class_name="InternVLVideoProcessor",
        write=partial(_written, picture),
        runs=partial(one_run_each, images.tokens_per_tile),
        sizes=partial(one_size, side),
        side=side,
        patches=(side[0] // images.vision_patch_size) * (side[1] // images.vision_patch_size),
        sampling=sampling_of(
            config, fps=found.fps, num_frames=found.num_frames, min_frames=1, max_frames=UNBOUNDED, group=1
        ),
        sampling_rule=partial(middles, shift=found.initial_shift),
        resize=resize,
        table=pixel_table(found, "torchvision"),
    )


def _written(picture: str, frames: Frames) -> str:
    return "\n".join(f"Frame{number}: {picture}" for number in range(1, len(frames.indices) + 1))


def _check_side(side: tuple[int, int], images: InternVLImageRule, parts: ProcessorParts) -> None:
    """A frame must have the size of a tile, or the model refuses it; the processor's class has another by default."""
    tile = (images.tile_height, images.tile_width)
    if side != tile:
        logger.warning(
            "%s: the video processor makes frames of %dx%d, images have tiles of %dx%d: a batch cannot hold both, and a"
            " model with %d tokens per tile does not take such frames; set size in the settings of the video processor",
            parts.name,
            *side[::-1],
            *tile[::-1],
            images.tokens_per_tile,
        )
