"""An image processor and the name of a backend in; that backend's resize and table of pixel values, without it, out.

transformers has most image processors twice: on torchvision and on Pillow. Their pixels differ in the filter's rounding
and in the last bits of the normalisation. Both are reproduced here with torch and Pillow alone.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, Literal

import numpy as np
import torch
from PIL import Image
from torch import Tensor
from transformers import AutoImageProcessor
from transformers.image_transforms import normalize, rescale

from packloom.errors import CapabilityError, MediaError
from packloom.task_encoders.image_memory import pixels_of
from packloom.task_encoders.pixel_resize import Mode, resize_pixels

Backend = Literal["torchvision", "pil"]
#: (image, height, width) → [height, width, 3 or 4] uint8; a fourth channel means nothing
Resize = Callable[[Image.Image, int, int], np.ndarray]

_MODES: dict[Image.Resampling, Mode] = {Image.Resampling.BILINEAR: "bilinear", Image.Resampling.BICUBIC: "bicubic"}
_BYTES = np.arange(256, dtype=np.uint8)


def backend_of(images: Any) -> Backend:
    """The backend that a loaded image processor runs on; processors without a second one count as Pillow's."""
    return "torchvision" if getattr(images, "backend", "pil") == "torchvision" else "pil"


def on_backend(images: Any, backend: Backend) -> Any | None:
    """The same processor with the same settings on another backend; None if that cannot be had here."""
    if backend_of(images) == backend:
        return images
    with tempfile.TemporaryDirectory() as folder:
        images.save_pretrained(folder)
        try:
            other = AutoImageProcessor.from_pretrained(folder, backend=backend)
        except (ImportError, ValueError):
            return None
    return other if backend_of(other) == backend else None


def run_processor(images: Any, sample: Sequence[Image.Image], options: Mapping[str, Any]) -> dict[str, Tensor]:
    """The tensors of one sample's images; raises MediaError for what the processor refuses."""
    try:
        # nested, one list for the sample: some processors treat several images of one sample differently
        return dict(images(images=[list(sample)], return_tensors="pt", **options))
    except (ValueError, RuntimeError) as error:  # how image processors refuse a size or a shape
        raise MediaError(f"the image processor refuses an image: {error}", code="media.refused") from error


def make_resize(images: Any, backend: Backend) -> Resize:
    """How this backend resizes with the processor's filter; raises CapabilityError for a filter not known here."""
    mode = mode_of(images)
    if backend == "pil":
        return partial(_pillow_resize, resample=Image.Resampling(images.resample))
    return partial(_torch_resize, mode=mode)


def mode_of(images: Any) -> Mode:
    """Torch's name of the processor's filter; raises CapabilityError for one that is not known here."""
    resample = Image.Resampling(images.resample)
    if resample not in _MODES:
        raise CapabilityError(f"the filter {resample.name} is not reproduced, only bilinear and bicubic")
    return _MODES[resample]


def _pillow_resize(image: Image.Image, height: int, width: int, *, resample: Image.Resampling) -> np.ndarray:
    return pixels_of(image.resize((width, height), resample))


def _torch_resize(image: Image.Image, height: int, width: int, *, mode: Mode) -> np.ndarray:
    return resize_pixels(pixels_of(image), height, width, mode=mode)


def pixel_table(images: Any, backend: Backend) -> Tensor:
    """[C, 256] float32: what the processor makes of each byte in each channel; one row if all are alike.

    Source: ``rescale_and_normalize`` of transformers' two backends; the order of operations decides the last bit.
    """
    channels = len(images.image_mean) if images.do_normalize else 3
    table = _torch_table(images, channels) if backend == "torchvision" else _numpy_table(images, channels)
    return table[:1] if torch.equal(table, table[:1].expand_as(table)) else table


def _torch_table(images: Any, channels: int) -> Tensor:
    values = torch.from_numpy(_BYTES).to(torch.float32).repeat(channels, 1)
    if not images.do_normalize:
        return values * images.rescale_factor if images.do_rescale else values
    mean, std = torch.tensor(images.image_mean), torch.tensor(images.image_std)
    if images.do_rescale:
        mean, std = mean * (1.0 / images.rescale_factor), std * (1.0 / images.rescale_factor)
    return values.sub_(mean[:, None]).div_(std[:, None])


def _numpy_table(images: Any, channels: int) -> Tensor:
    values = np.tile(_BYTES, (channels, 1, 1))  # [C, 1, 256], an image of one line
    if images.do_rescale:
        values = rescale(values, images.rescale_factor, input_data_format="channels_first")
    if images.do_normalize:
        values = normalize(values, images.image_mean, images.image_std, input_data_format="channels_first")
    return torch.from_numpy(np.ascontiguousarray(values[:, 0].astype(np.float32)))
