"""Kimi-VL images: a size in, its patch grid and run of placeholder tokens out, as the checkpoint's code has them."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from PIL import Image
from torch import Tensor

from packloom.errors import CapabilityError, MediaError, ProcessorError
from packloom.task_encoders.family import ImageLayout
from packloom.task_encoders.processors import ProcessorParts
from packloom.task_encoders.settings_images import AsLoaded, image_processor_of, positive

MEDIA_TOKENS = ("<|media_start|>", "<|media_content|>", "<|media_pad|>", "<|media_end|>")

#: Patches along one side for which the vision tower has no position: the image processor refuses from here on.
TOO_LONG = 512


@dataclass(frozen=True, kw_only=True)
class FlatImages(AsLoaded):
    """An image processor that takes its images in one list, called with one list per sample."""

    inner: Any

    def __call__(self, *, images: Sequence[Sequence[Image.Image]], **options: Any) -> Any:
        """The processor's tensors."""
        return self.inner([image for sample in images for image in sample], **options)


@dataclass(frozen=True, kw_only=True)
class KimiVLImageRule:
    """Images above a budget of patches are shrunk, none is enlarged; then they are padded to whole merged patches."""

    patch_size: int
    merge_size: int
    max_patches: int
    token: str = "<|media_pad|>"
    model_keys: tuple[str, ...] = ("pixel_values", "image_grid_hws")
    helper_keys: tuple[str, ...] = ()
    call_options: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def from_parts(cls, parts: ProcessorParts) -> KimiVLImageRule:
        """Read the geometry from the checkpoint's own image processor; raises CapabilityError where it would crop."""
        images = image_processor_of(parts)
        images = images.inner if isinstance(images, FlatImages) else images
        if not images.pad_input:
            raise CapabilityError(
                f"{parts.name}: the image processor's pad_input is off, so images are cut to sizes that do not merge"
            )
        rows, columns = images.merge_kernel_size
        if rows != columns:
            raise ProcessorError(f"{parts.name}: merge_kernel_size is {rows}x{columns}, expected a square")
        return cls(
            patch_size=positive(images.patch_size, "patch_size", parts),
            merge_size=positive(rows, "merge_kernel_size", parts),
            max_patches=positive(images.in_token_limit, "in_token_limit", parts),
        )

    @property
    def placeholder(self) -> str:
        """One media token."""
        return self.token

    def measure(self, height: int, width: int, num_images: int = 1) -> ImageLayout:
        """The layout of an image of this size; raises MediaError for one that the processor refuses."""
        rows, columns = self.grid(height, width)
        return ImageLayout(
            text=self.token,
            runs=(rows * columns // self.merge_size**2,),
            num_patches=rows * columns,
            grid_thw=(1, rows, columns),
        )

    def grid(self, height: int, width: int) -> tuple[int, int]:
        """(rows, columns) of patches. Source: ``rescale`` of KimiVLImageProcessor, in the checkpoint's own code."""
        patches = (width // self.patch_size) * (height // self.patch_size)
        tall, wide = height, width
        if patches > self.max_patches:
            scale = math.sqrt(self.max_patches / patches)
            tall, wide = int(height * scale), int(width * scale)
        factor = self.merge_size * self.patch_size
        rows, columns = (math.ceil(side / factor) * self.merge_size for side in (tall, wide))
        if not rows or not columns or max(rows, columns) >= TOO_LONG:
            raise MediaError(
                f"an image of {width}x{height} pixels makes {rows}x{columns} patches; the processor takes 1 to"
                f" {TOO_LONG - 1} along a side",
                code="media.refused",
                hint="crop or pad it",
            )
        return rows, columns

    def produced(self, tensors: dict[str, Tensor], index: int) -> object:
        """The grid that the processor reports for the image at ``index``."""
        return tuple(tensors["image_grid_hws"][index].tolist())

    def expected(self, layout: ImageLayout) -> object:
        """The grid predicted from the size."""
        return layout.grid_thw and layout.grid_thw[1:]
