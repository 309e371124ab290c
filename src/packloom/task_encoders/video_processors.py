"""Settings of a video processor in; transformers' own one where it can be had, its resizing of frames, its tensors out.

transformers has video processors on torchvision only. Their resizing is reproduced here with torch alone.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping
from functools import partial
from typing import Any

import numpy as np
import torch
import transformers
from PIL import Image
from torch import Tensor

from packloom.errors import CapabilityError, MediaError
from packloom.task_encoders.image_backends import mode_of
from packloom.task_encoders.pixel_resize import PixelResize, has_lanczos, resize_pixels
from packloom.task_encoders.processors import ProcessorParts


def load_video_processor(parts: ProcessorParts, class_name: str) -> Any | None:
    """The processor of the parts' settings, a ``class_name`` where they name none; None without torchvision."""
    if importlib.util.find_spec("torchvision") is None or parts.video_settings is None:
        return None
    kind = getattr(transformers, str(parts.video_settings.get("video_processor_type") or class_name), None)
    try:
        return None if kind is None else kind.from_dict(dict(parts.video_settings))
    except (ImportError, RuntimeError, TypeError, ValueError):  # how transformers says that torchvision is not usable
        return None


def run_video_processor(processor: Any, planes: np.ndarray, options: Mapping[str, Any]) -> dict[str, Tensor]:
    """Its tensors of one video whose frames, [F, C, H, W] uint8, are chosen; raises MediaError for a refusal."""
    try:
        made = processor(
            videos=[torch.from_numpy(planes)],
            do_sample_frames=False,
            input_data_format="channels_first",
            return_tensors="pt",
            **options,
        )
    except (ValueError, RuntimeError) as error:  # how video processors refuse a size or a shape
        raise MediaError(f"the video processor refuses a video: {error}", code="media.refused") from error
    return {name: value for name, value in made.items() if isinstance(value, Tensor)}


def frame_resize(found: Any) -> PixelResize | None:
    """How the processor resizes a frame; None where only the processor itself can, for want of a newer torch.

    Raises CapabilityError for a filter not known here.
    """
    if Image.Resampling(found.resample) is not Image.Resampling.LANCZOS:
        return partial(resize_pixels, mode=mode_of(found))
    return _lanczos if has_lanczos() else None


def _lanczos(pixels: np.ndarray, height: int, width: int) -> np.ndarray:
    """torchvision takes this filter for bytes since 0.27."""
    try:
        return resize_pixels(pixels, height, width, mode="lanczos")
    except RuntimeError as error:  # an assertion within torch on frames of one line
        high, wide = pixels.shape[:2]
        raise MediaError(f"frames of {wide}x{high} cannot be resized", code="media.refused") from error


def needs_processor(what: str, name: str) -> CapabilityError:
    """The refusal where frames can be made by transformers' own video processor only, and it cannot be loaded."""
    return CapabilityError(
        f"{name}: {what}, so only transformers' own video processor can resize its frames, and that needs torchvision:"
        " pip install torchvision"
    )
