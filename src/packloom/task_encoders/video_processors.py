"""Settings of a video processor in; transformers' own one where it can be had, its resizing of frames, its tensors out.

transformers has video processors on torchvision only. Their resizing is reproduced here with torch alone.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
import transformers
from PIL import Image
from torch import Tensor
from torch.nn import functional

from packloom.errors import CapabilityError, MediaError
from packloom.task_encoders.image_backends import Resize, make_resize, planes_of
from packloom.task_encoders.image_memory import pixels_of
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


def frame_resize(found: Any) -> Resize | None:
    """How the processor resizes a frame; None where only the processor itself can, for want of a newer torch.

    Raises CapabilityError for a filter not known here.
    """
    if Image.Resampling(found.resample) is not Image.Resampling.LANCZOS:
        return make_resize(found, "torchvision")
    return _lanczos if _has_lanczos() else None


def _lanczos(image: Image.Image, height: int, width: int) -> np.ndarray:
    """As torchvision.transforms.v2.functional.resize on uint8, since 0.27."""
    planes = planes_of(pixels_of(image))
    if planes.shape[1:] == (height, width):
        return planes
    try:
        return _interpolated(torch.from_numpy(planes)[None], height, width)[0].numpy()
    except RuntimeError as error:  # an assertion within torch on frames of one line
        raise MediaError(f"frames of {image.width}x{image.height} cannot be resized", code="media.refused") from error


def _interpolated(planes: Tensor, height: int, width: int) -> Tensor:
    return functional.interpolate(planes, size=(height, width), mode="lanczos", antialias=True)


def _has_lanczos() -> bool:
    try:
        tiny = torch.zeros((1, 3, 8, 8), dtype=torch.uint8)
        _interpolated(tiny, 4, 4)
    except (NotImplementedError, RuntimeError, ValueError):
        return False
    return True


def needs_processor(what: str, name: str) -> CapabilityError:
    """The refusal where frames can be made by transformers' own video processor only, and it cannot be loaded."""
    return CapabilityError(
        f"{name}: {what}, so only transformers' own video processor can resize its frames, and that needs torchvision:"
        " pip install torchvision"
    )
