"""Kimi-K2.5 images: a size in, its patch grid and run of placeholder tokens out."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

from packloom.task_encoders.family import ImageLayout
from packloom.task_encoders.processors import ProcessorParts
from packloom.task_encoders.settings_images import image_processor_of, named_token, positive

MEDIA_TOKENS = ("<|media_begin|>", "<|media_content|>", "<|media_pad|>", "<|media_end|>")


@dataclass(frozen=True, kw_only=True)
class KimiImageRule:
    """Images are shrunk to fit the patch budgets, never enlarged, then padded to whole merged patches."""

    token: str
    patch_size: int
    merge_size: int
    max_patches: int
    max_side: int  # patches along one side
    model_keys: tuple[str, ...] = ("pixel_values", "image_grid_thw")
    helper_keys: tuple[str, ...] = ()
    call_options: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def from_parts(cls, parts: ProcessorParts) -> KimiImageRule:
        """Read the geometry from a loaded image processor."""
        images = image_processor_of(parts)
        return cls(
            token=named_token(parts, "image_token", "<|media_pad|>"),
            patch_size=positive(images.patch_size, "patch_size", parts),
            merge_size=positive(images.merge_size, "merge_size", parts),
            max_patches=positive(images.max_patches, "max_patches", parts),
            max_side=positive(images.size.get("max_height"), "size.max_height", parts),
        )

    @property
    def placeholder(self) -> str:
        """One media token."""
        return self.token

    def measure(self, height: int, width: int, num_images: int = 1) -> ImageLayout:
        """The layout of an image of this size."""
        rows, columns = (side // self.patch_size for side in self.padded(height, width))
        return ImageLayout(
            text=self.token,
            runs=(rows * columns // self.merge_size**2,),
            num_patches=rows * columns,
            grid_thw=(1, rows, columns),
            token_grid=(1, rows // self.merge_size, columns // self.merge_size),
        )

    def padded(self, height: int, width: int) -> tuple[int, int]:
        """(height, width) after resizing and padding. Source: ``navit_resize`` of the Kimi-K2.5 image processor."""
        longest = self.max_side * self.patch_size
        patches = max(1, height // self.patch_size) * max(1, width // self.patch_size)
        scale = min(1.0, math.sqrt(self.max_patches / patches), longest / height, longest / width)
        factor = self.merge_size * self.patch_size
        tall, wide = (min(max(1, int(side * scale)), longest) for side in (height, width))
        return math.ceil(tall / factor) * factor, math.ceil(wide / factor) * factor

    def produced(self, tensors: dict[str, Tensor], index: int) -> object:
        """The grid that the processor reports for the image at ``index``."""
        return tuple(tensors["image_grid_thw"][index].tolist())

    def expected(self, layout: ImageLayout) -> object:
        """The grid predicted from the size."""
        return layout.grid_thw
