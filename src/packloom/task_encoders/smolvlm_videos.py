"""A loaded SmolVLM processor and the video settings in, the rule of its videos out."""

from __future__ import annotations

import datetime
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from transformers.image_utils import IMAGENET_STANDARD_MEAN, IMAGENET_STANDARD_STD

from packloom.config_video import VideoConfig
from packloom.errors import CapabilityError
from packloom.task_encoders.frame_sampling import UNBOUNDED, within_margins
from packloom.task_encoders.frame_videos import FrameVideoRule, one_run_each
from packloom.task_encoders.image_backends import pixel_table
from packloom.task_encoders.processors import ProcessorParts
from packloom.task_encoders.settings_images import fixed_size, positive
from packloom.task_encoders.smolvlm_images import MAX_SIDE, SmolVLMImageRule
from packloom.task_encoders.video_processors import frame_resize, load_video_processor, needs_processor
from packloom.task_encoders.video_sampling import sampling_of
from packloom.task_encoders.video_settings import refuse_bounds, refuse_unresized, with_defaults
from packloom.types import Frames

PLACEHOLDER = "<video>"
#: The released template leaves videos out; transformers then takes another, which differs in what is added here only.
_WITHOUT = "{% elif line['type'] == 'image' %}{{ '<image>' }}{% endif %}"
_WITH = _WITHOUT.replace("{% endif %}", "{% elif line['type'] == 'video' %}{{ '" + PLACEHOLDER + "' }}{% endif %}")
_CLASS = "SmolVLMVideoProcessor"
#: ``SmolVLMVideoProcessor``
_DEFAULTS = {
    "do_resize": True,
    "do_rescale": True,
    "do_normalize": True,
    "rescale_factor": 1 / 255,
    "resample": 1,  # Lanczos
    "image_mean": IMAGENET_STANDARD_MEAN,
    "image_std": IMAGENET_STANDARD_STD,
    "max_image_size": {"longest_edge": 364},
    "num_frames": None,
    "fps": None,
}
_SIZE = {"longest_edge": 4 * 364}


def smolvlm_video_rule(parts: ProcessorParts, config: VideoConfig) -> FrameVideoRule:
    """Each frame as an image of one tile behind its time, and a sentence before them.

    Raises CapabilityError for Idefics3, and where num2words, which spells the number of frames, is not installed.
    """
    if "idefics3" in (parts.model_type, str(parts.processor_class).removesuffix("Processor").lower()):
        raise CapabilityError(f"{parts.name}: the processor of Idefics3 takes no videos")
    refuse_bounds(config, "smolvlm")
    settings = dict(parts.video_settings or {})
    own = settings.get("video_sampling") or {}  # of released checkpoints: max_frames, fps, video_size
    found = with_defaults(settings, _DEFAULTS)
    refuse_unresized(found, parts.name)
    tile = positive(found.max_image_size.get("longest_edge"), "max_image_size.longest_edge of videos", parts)
    images = SmolVLMImageRule.from_parts(parts)
    resize = frame_resize(found)
    if resize is None and load_video_processor(parts, _CLASS) is None:
        raise needs_processor("its videos are resized by Lanczos' filter, which torch has since 2.13", parts.name)
    picture = f"{images.around_token}{images.global_token}{images.token}{images.around_token}"
    return FrameVideoRule(
        placeholder=PLACEHOLDER,
        token=images.token,
        class_name=_CLASS,
        write=partial(_written, picture, _number_speller(parts.name)),
        runs=partial(one_run_each, images.tokens_per_tile),
        sizes=_sizes(settings.get("size") or own.get("video_size") or _SIZE, tile, parts),
        side=(tile, tile),
        patches=(tile // images.vision_patch_size) ** 2,
        sampling=sampling_of(
            config,
            fps=own.get("fps", found.fps),
            min_frames=1,
            max_frames=own.get("max_frames", found.num_frames) or UNBOUNDED,
            group=1,
        ),
        sampling_rule=within_margins,
        resize=resize,
        table=pixel_table(found, "torchvision"),
        batched=True,
        mask_key="pixel_attention_mask",
    )


def with_videos(chat_template: str) -> str:
    """The template, which also writes a place for each video if it is the released one."""
    return chat_template.replace(_WITHOUT, _WITH) if "'video'" not in chat_template else chat_template


def _number_speller(name: str) -> Callable[[int], str]:
    try:
        from num2words import num2words  # noqa: PLC0415 - an optional dependency
    except ImportError as error:
        raise CapabilityError(
            f"{name}: SmolVLM's prompt spells the number of frames by num2words, which is not installed:"
            " pip install 'packloom[video]'"
        ) from error
    speller: Callable[[int], str] = num2words
    return speller


def _written(picture: str, spelled: Callable[[int], str], frames: Frames) -> str:
    """Source: ``replace_video_token`` of the SmolVLM processor."""
    count, length = spelled(len(frames.indices)), datetime.timedelta(seconds=int(frames.duration))
    shown = [f"\nFrame from {int(second // 60):02d}:{int(second % 60):02d}:{picture}" for second in frames.seconds]
    intro = f"You are provided the following series of {count} frames from a {length} [H:MM:SS] video.\n"
    return f"{intro}{''.join(shown)}\n\n"


def _sizes(size: Mapping[str, Any], tile: int, parts: ProcessorParts) -> Callable[[int, int], list[tuple[int, int]]]:
    if not size.get("longest_edge"):
        return partial(_stretched_then_square, fixed_size(size, "size of videos", parts), tile)
    return partial(_scaled_then_square, min(MAX_SIDE, size["longest_edge"]), tile)


def _stretched_then_square(side: tuple[int, int], tile: int, height: int, width: int) -> list[tuple[int, int]]:
    return [side, (tile, tile)]


def _scaled_then_square(longest: int, tile: int, height: int, width: int) -> list[tuple[int, int]]:
    """First with the longest edge as set and the other even, then stretched to a square.

    Source: ``get_resize_output_image_size`` and ``resize`` of the SmolVLM video processor.
    """
    ratio = width / height
    if width >= height:
        scaled = (int(longest / ratio), longest)
        scaled = (scaled[0] + scaled[0] % 2, longest)
    else:
        scaled = (longest, int(longest * ratio))
        scaled = (longest, scaled[1] + scaled[1] % 2)
    return [(max(scaled[0], 1), max(scaled[1], 1)), (tile, tile)]
