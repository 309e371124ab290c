"""InternVL3 and 3.5 images: a size in, its tiles, a thumbnail and their run of context tokens out."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

from packloom.task_encoders.family import ImageLayout
from packloom.task_encoders.processors import ProcessorParts
from packloom.task_encoders.settings_images import (
    fixed_size,
    image_processor_of,
    named_token,
    positive,
    processor_setting,
)

MEDIA_TOKENS = ("<img>", "<IMG_CONTEXT>", "</img>")


@dataclass(frozen=True, kw_only=True)
class InternVLImageRule:
    """An image is cut into the grid of tiles nearest to its shape; more than one tile adds a thumbnail."""

    token: str
    start_token: str
    end_token: str
    tokens_per_tile: int
    tile_height: int
    tile_width: int
    min_tiles: int
    max_tiles: int
    vision_patch_size: int = 14  # not among the processor's settings; counts patches for the media budget
    model_keys: tuple[str, ...] = ("pixel_values",)
    helper_keys: tuple[str, ...] = ("num_patches",)
    #: InternVLProcessor asks for tiles on every call, whatever the image processor's own setting
    call_options: Mapping[str, Any] = field(default_factory=lambda: {"crop_to_patches": True})

    @classmethod
    def from_parts(cls, parts: ProcessorParts) -> InternVLImageRule:
        """Read the geometry from a loaded processor."""
        images = image_processor_of(parts)
        height, width = fixed_size(images.size, "size", parts)
        return cls(
            token=named_token(parts, "context_image_token"),
            start_token=named_token(parts, "start_image_token"),
            end_token=named_token(parts, "end_image_token"),
            tokens_per_tile=processor_setting(parts, "image_seq_length", 256),
            tile_height=height,
            tile_width=width,
            min_tiles=positive(images.min_patches, "min_patches", parts),
            max_tiles=positive(images.max_patches, "max_patches", parts),
        )

    @property
    def placeholder(self) -> str:
        """One context token."""
        return self.token

    def measure(self, height: int, width: int, num_images: int = 1) -> ImageLayout:
        """The layout of an image of this size."""
        columns, rows = self.grid(height, width)
        tiles = columns * rows + (columns * rows > 1)
        patches = (self.tile_height // self.vision_patch_size) * (self.tile_width // self.vision_patch_size)
        return ImageLayout(
            text=f"{self.start_token}{self.token}{self.end_token}",
            runs=(self.tokens_per_tile * tiles,),
            num_patches=patches * tiles,
        )

    def grid(self, height: int, width: int) -> tuple[int, int]:
        """(columns, rows) of tiles. Source: ``get_optimal_tiled_canvas`` of the GOT-OCR2 image processor.

        The grid whose shape is nearest wins; among equally near ones a larger grid wins where the image has more than
        half of its pixels.
        """
        if self.max_tiles == 1:
            return 1, 1
        ratio, best, best_difference = width / height, (1, 1), float("inf")
        for columns, rows in self._grids():
            difference = abs(ratio - columns / rows)
            enough = height * width > 0.5 * self.tile_height * self.tile_width * columns * rows
            if difference < best_difference or (difference == best_difference and enough):
                best, best_difference = (columns, rows), difference
        return best

    def _grids(self) -> list[tuple[int, int]]:
        sides = range(1, self.max_tiles + 1)
        grids = [(columns, rows) for columns in sides for rows in sides]
        allowed = [grid for grid in grids if self.min_tiles <= grid[0] * grid[1] <= self.max_tiles]
        return sorted(allowed, key=lambda grid: grid[0] * grid[1])

    def produced(self, tensors: dict[str, Tensor], index: int) -> object:
        """Tiles of the image at ``index``, and their size."""
        return int(tensors["num_patches"][index]), tuple(tensors["pixel_values"].shape[-2:])

    def expected(self, layout: ImageLayout) -> object:
        """The predicted number of tiles, and their size."""
        return layout.runs[0] // self.tokens_per_tile, (self.tile_height, self.tile_width)
