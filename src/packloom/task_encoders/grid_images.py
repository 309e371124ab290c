"""Qwen-style images of any size: a size in, its patch grid and run of placeholder tokens out."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from PIL import Image
from torch import Tensor

from packloom.errors import ConfigError, MediaError, ProcessorError
from packloom.task_encoders.family import ImageLayout
from packloom.task_encoders.image_backends import Resize
from packloom.task_encoders.pixel_resize import as_numbers
from packloom.task_encoders.processors import ProcessorParts

#: Longer sides over shorter sides above this are refused by the Qwen-VL image processors.
MAX_ASPECT_RATIO = 200
#: Rows of blocks of patches that are cut together.
_STRIPS = 4


@dataclass(frozen=True, kw_only=True)
class GridImageRule:
    """Images are resized to whole merged patches within pixel bounds; one token stands for merge × merge patches."""

    placeholder: str
    token: str
    patch_size: int
    merge_size: int
    min_pixels: int
    max_pixels: int
    temporal_patch_size: int = 2
    model_keys: tuple[str, ...] = ("pixel_values", "image_grid_thw")
    helper_keys: tuple[str, ...] = ()
    call_options: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def from_parts(cls, parts: ProcessorParts, *, token: str) -> GridImageRule:
        """Read the geometry from a loaded image processor."""
        images = parts.image_processor
        if images is None:
            raise ProcessorError(f"{parts.name}: no image processor was loaded, and this family needs one")
        return cls(
            placeholder=token,
            token=token,
            patch_size=images.patch_size,
            merge_size=images.merge_size,
            min_pixels=images.size["shortest_edge"],
            max_pixels=images.size["longest_edge"],
            temporal_patch_size=images.temporal_patch_size,
        )

    def measure(self, height: int, width: int, num_images: int = 1) -> ImageLayout:
        """The layout of an image of this size; raises MediaError above the aspect-ratio limit."""
        rows, columns = (side // self.patch_size for side in self.resized(height, width))
        num_patches = rows * columns
        return ImageLayout(
            text=self.token,
            runs=(num_patches // self.merge_size**2,),
            num_patches=num_patches,
            grid_thw=(1, rows, columns),
            token_grid=(1, rows // self.merge_size, columns // self.merge_size),
        )

    def resized(self, height: int, width: int) -> tuple[int, int]:
        """(height, width) after resizing. Source: ``smart_resize`` of the Qwen2-VL image processor."""
        refuse_thin(height, width, what=f"an image of {width}x{height} is", hint="crop or pad it")
        return within_bounds(
            height,
            width,
            factor=self.patch_size * self.merge_size,
            min_pixels=self.min_pixels,
            max_pixels=self.max_pixels,
        )

    @property
    def frames(self) -> int:
        """A still image stands for every frame of a temporal patch."""
        return self.temporal_patch_size

    @property
    def patch_shape(self) -> tuple[int, int, int]:
        """(C, h, w) of a patch."""
        return 3, self.patch_size, self.patch_size

    def patches(self, image: Image.Image, resize: Resize, out: np.ndarray) -> None:
        """Into ``out`` [P, C, patch_size, patch_size] uint8: merged patches in raster order, those of each together."""
        cut_patches(resize(image, *self.resized(image.height, image.width)), self.patch_size, self.merge_size, out)

    def produced(self, tensors: dict[str, Tensor], index: int) -> object:
        """The grid that the processor reports for the image at ``index``."""
        return tuple(tensors["image_grid_thw"][index].tolist())

    def expected(self, layout: ImageLayout) -> object:
        """The grid predicted from the size."""
        return layout.grid_thw


def refuse_thin(height: int, width: int, *, what: str, hint: str) -> None:
    """Raises MediaError above the aspect-ratio limit of the processors; ``what`` begins the sentence."""
    if max(height, width) / min(height, width) > MAX_ASPECT_RATIO:
        raise MediaError(
            f"{what} thinner than {MAX_ASPECT_RATIO}:1, which the processor refuses",
            code="media.aspect_ratio",
            hint=hint,
        )


def enlarged(height: int, width: int, least: int) -> tuple[int, int]:
    """(height, width) in the same shape with no side below ``least``, as GLM-4V and Qwen3-VL's videos begin."""
    if min(height, width) >= least:
        return height, width
    scale = max(least / height, least / width)
    return int(height * scale), int(width * scale)


def within_bounds(
    height: int, width: int, *, factor: int, min_pixels: int, max_pixels: int, frames: int = 1, counted: int = 1
) -> tuple[int, int]:
    """(height, width) in multiples of ``factor``, the pixels of all frames within the bounds.

    ``counted`` is the number of frames in whole temporal patches. Source: ``smart_resize`` of the image and video
    processors of Qwen-VL and GLM-4V.
    """
    # round() halves to even, as the processors do
    new_height, new_width = round(height / factor) * factor, round(width / factor) * factor
    if counted * new_height * new_width > max_pixels:
        scale = math.sqrt(frames * height * width / max_pixels)
        new_height = max(factor, math.floor(height / scale / factor) * factor)
        new_width = max(factor, math.floor(width / scale / factor) * factor)
    elif counted * new_height * new_width < min_pixels:
        scale = math.sqrt(min_pixels / (frames * height * width))
        new_height = math.ceil(height * scale / factor) * factor
        new_width = math.ceil(width * scale / factor) * factor
    return new_height, new_width


def cut_patches(pixels: np.ndarray, size: int, merge: int, out: np.ndarray) -> None:
    """[H, W, 3 or 4] uint8 → [P, 3, size, size], in the order of blocks of merge × merge patches, then within them.

    ``out`` must be contiguous. Source: ``patchify`` of the Qwen2-VL image processor.
    """
    strip = size * merge
    height, width = pixels.shape[:2]
    rows = out.reshape(height // strip, -1, 3, size * size)
    # a few strips at a time, which the processor's cache holds: first in the order of memory, then in that of patches
    read, ordered = np.empty((2, min(_STRIPS, len(rows)), strip, width), np.uint32)
    for first in range(0, len(rows), _STRIPS):
        part = rows[first : first + _STRIPS]
        count = len(part)
        numbers = as_numbers(pixels[first * strip : (first + count) * strip])
        np.copyto(read[:count], numbers.reshape(count, strip, width))
        # whole pixels: fewer and longer lines than those of each channel
        lines = as_lines(read[:count], size).reshape(count, merge, size, width // strip, merge)
        patches = ordered[:count].reshape(count, width // strip, merge, merge, size, size)
        as_lines(patches, size)[..., 0] = lines.transpose(0, 3, 1, 4, 2)
        _take_apart(patches.reshape(*part.shape[:2], size * size), part)


def _take_apart(pixels: np.ndarray, out: np.ndarray) -> None:
    """[..., N] uint32, which are used up, into ``out`` [..., 3, N] uint8."""
    for channel in range(3):
        if channel:
            np.right_shift(pixels, 8, out=pixels)
        np.copyto(out[..., channel, :], pixels, casting="unsafe")


def as_lines(values: np.ndarray, size: int) -> np.ndarray:
    """[..., n * size], contiguous → [..., n]: lines of patches, each moved as one item."""
    return values.reshape(*values.shape[:-1], -1, size).view(f"V{size * values.itemsize}")[..., 0]


def with_pixel_bounds(parts: ProcessorParts, min_pixels: int | None, max_pixels: int | None) -> ProcessorParts:
    """The same parts with other area bounds; a bound of None keeps the processor's own. Raises ConfigError."""
    images = parts.image_processor
    if images is None:
        raise ConfigError(f"{parts.name}: pixel bounds were given, but there is no image processor")
    low = images.size["shortest_edge"] if min_pixels is None else min_pixels
    high = images.size["longest_edge"] if max_pixels is None else max_pixels
    if low > high:
        raise ConfigError(f"min_pixels {low} is above max_pixels {high}: set both")
    settings = {**images.to_dict(), "size": {"shortest_edge": low, "longest_edge": high}}
    # an older spelling of the same bounds would win over size
    settings.pop("min_pixels", None)
    settings.pop("max_pixels", None)
    return dataclasses.replace(parts, image_processor=type(images).from_dict(settings))
