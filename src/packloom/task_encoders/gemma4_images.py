"""Gemma 4 images: a size in, its number of soft tokens between two marks out."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

from packloom.task_encoders.family import ImageLayout
from packloom.task_encoders.processors import ProcessorParts
from packloom.task_encoders.settings_images import image_processor_of, named_token, positive

MEDIA_TOKENS = ("<|image>", "<|image|>", "<image|>", "<|audio>", "<|audio|>", "<audio|>")


@dataclass(frozen=True, kw_only=True)
class Gemma4ImageRule:
    """Images are scaled to fill a budget of soft tokens, each of pooling × pooling patches, keeping their shape."""

    token: str
    start_token: str
    end_token: str
    patch_size: int
    pooling: int
    max_tokens: int
    model_keys: tuple[str, ...] = ("pixel_values", "image_position_ids")
    helper_keys: tuple[str, ...] = ("num_soft_tokens_per_image",)
    call_options: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def from_parts(cls, parts: ProcessorParts) -> Gemma4ImageRule:
        """Read the geometry from a loaded processor."""
        images = image_processor_of(parts)
        return cls(
            token=named_token(parts, "image_token"),
            start_token=named_token(parts, "boi_token"),
            end_token=named_token(parts, "eoi_token"),
            patch_size=positive(images.patch_size, "patch_size", parts),
            pooling=positive(images.pooling_kernel_size, "pooling_kernel_size", parts),
            max_tokens=positive(images.max_soft_tokens, "max_soft_tokens", parts),
        )

    @property
    def placeholder(self) -> str:
        """One soft token."""
        return self.token

    def measure(self, height: int, width: int, num_images: int = 1) -> ImageLayout:
        """The layout of an image of this size; every image fills the whole budget of patches, with padding."""
        rows, columns = self.grid(height, width)
        return ImageLayout(
            text=f"{self.start_token}{self.token}{self.end_token}",
            runs=(rows * columns,),
            num_patches=self.max_tokens * self.pooling**2,
        )

    def grid(self, height: int, width: int) -> tuple[int, int]:
        """(rows, columns) of soft tokens. Source: ``get_aspect_ratio_preserving_size`` of the image processor."""
        side = self.pooling * self.patch_size
        scale = math.sqrt(self.max_tokens * self.pooling**2 * self.patch_size**2 / (height * width))
        rows, columns = math.floor(scale * height / side), math.floor(scale * width / side)
        if rows == 0:
            return 1, min(width // height, self.max_tokens)
        if columns == 0:
            return min(height // width, self.max_tokens), 1
        return rows, columns

    def produced(self, tensors: dict[str, Tensor], index: int) -> object:
        """Soft tokens of the image at ``index``: as reported, and as counted in the patches that are no padding."""
        real = int((tensors["image_position_ids"][index] >= 0).all(dim=-1).sum())
        return int(tensors["num_soft_tokens_per_image"][index]), real / self.pooling**2

    def expected(self, layout: ImageLayout) -> object:
        """The predicted number, for both."""
        return layout.runs[0], layout.runs[0]
