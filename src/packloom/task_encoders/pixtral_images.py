"""Pixtral, Mistral-Small-3 and Ministral-3 images: a size in, rows of placeholder tokens with their breaks out."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from packloom.errors import MediaError
from packloom.task_encoders.family import ImageLayout
from packloom.task_encoders.processors import ProcessorParts
from packloom.task_encoders.settings_images import fixed_size, image_processor_of, positive, processor_setting

MEDIA_TOKENS = ("[IMG]", "[IMG_BREAK]", "[IMG_END]")

#: media key → join of rows; the model finds the real part of a padded image by image_sizes
MEDIA_JOINS = {"pixel_values": "pad_images"}


@dataclass(frozen=True, kw_only=True)
class PixtralImageRule:
    """Images are shrunk to a longest edge, never enlarged, then stretched to whole merged patches."""

    token: str
    break_token: str
    end_token: str
    patch_size: int
    merge_size: int
    max_height: int
    max_width: int
    model_keys: tuple[str, ...] = ("pixel_values", "image_sizes")
    helper_keys: tuple[str, ...] = ()

    @classmethod
    def from_parts(cls, parts: ProcessorParts) -> PixtralImageRule:
        """Read the geometry from a loaded processor."""
        size, settings = image_processor_of(parts).size, parts.settings
        longest = size.get("longest_edge")
        max_height, max_width = (longest, longest) if longest else fixed_size(size, "size", parts)
        return cls(
            token=settings.get("image_token", "[IMG]"),
            break_token=settings.get("image_break_token", "[IMG_BREAK]"),
            end_token=settings.get("image_end_token", "[IMG_END]"),
            patch_size=processor_setting(parts, "patch_size", 16),
            merge_size=processor_setting(parts, "spatial_merge_size", 1),
            max_height=positive(max_height, "size", parts),
            max_width=positive(max_width, "size", parts),
        )

    @property
    def placeholder(self) -> str:
        """One media token."""
        return self.token

    @property
    def factor(self) -> int:
        """Pixels along one side of a media token."""
        return self.patch_size * self.merge_size

    @property
    def call_options(self) -> Mapping[str, Any]:
        """PixtralProcessor has images resized to whole merged patches, whatever the image processor's own setting."""
        return {"patch_size": self.factor}

    def measure(self, height: int, width: int, num_images: int = 1) -> ImageLayout:
        """The layout of an image of this size; raises MediaError for one that would lose a side."""
        rows, columns = self.grid(height, width)
        if not rows or not columns:
            raise MediaError(
                f"an image of {width}x{height} is so thin that resizing it to at most"
                f" {self.max_width}x{self.max_height} leaves no pixel of its short side",
                code="media.aspect_ratio",
                hint="crop or pad it",
            )
        row = f"{self.token}{self.break_token}"
        return ImageLayout(
            text=row * (rows - 1) + f"{self.token}{self.end_token}",
            runs=(columns,) * rows,
            num_patches=rows * columns * self.merge_size**2,
        )

    def grid(self, height: int, width: int) -> tuple[int, int]:
        """(rows, columns) of media tokens. Source: ``get_resize_output_image_size`` of the Pixtral image processor."""
        ratio = max(height / self.max_height, width / self.max_width)
        if ratio > 1:
            height, width = int(height / ratio), int(width / ratio)
        return -(-height // self.factor), -(-width // self.factor)

    def produced(self, tensors: dict[str, Tensor], index: int) -> object:
        """(rows, columns) in the size that the processor reports for the image at ``index``."""
        height, width = tensors["image_sizes"][index].tolist()
        return height / self.factor, width / self.factor

    def expected(self, layout: ImageLayout) -> object:
        """(rows, columns) predicted from the size."""
        return len(layout.runs), layout.runs[0]
