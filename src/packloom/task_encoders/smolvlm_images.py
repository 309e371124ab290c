"""SmolVLM and Idefics3 images: a size in, rows and columns of tiles with their marks, and a global picture, out."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

from packloom.errors import CapabilityError
from packloom.task_encoders.family import ImageLayout
from packloom.task_encoders.processors import ProcessorParts
from packloom.task_encoders.settings_images import image_processor_of, named_token, positive, processor_setting

#: The vocabulary has marks for six rows and columns; a larger grid's marks are ordinary text.
MEDIA_TOKENS = (
    "<fake_token_around_image>",
    "<global-img>",
    "<image>",
    *(f"<row_{row}_col_{column}>" for row in range(1, 7) for column in range(1, 7)),
)

#: media key → join of rows: a row is [1, tiles, ...]
MEDIA_JOINS = {"pixel_values": "concat_tiles", "pixel_attention_mask": "concat_tiles"}

#: The image processors enlarge no side beyond this.
MAX_SIDE = 4096


@dataclass(frozen=True, kw_only=True)
class SmolVLMImageRule:
    """An image is scaled to a longest edge, stretched to whole tiles and cut; the whole image follows as one tile."""

    token: str
    around_token: str
    global_token: str
    tokens_per_tile: int
    longest_edge: int
    tile: int
    splits: bool
    vision_patch_size: int = 16  # not among the processor's settings; counts patches for the media budget
    model_keys: tuple[str, ...] = ("pixel_values", "pixel_attention_mask")
    helper_keys: tuple[str, ...] = ("rows", "cols")
    call_options: Mapping[str, Any] = field(default_factory=lambda: {"return_row_col_info": True})

    @classmethod
    def from_parts(cls, parts: ProcessorParts) -> SmolVLMImageRule:
        """Read the geometry from a loaded processor."""
        images = image_processor_of(parts)
        if not images.do_pad:
            raise CapabilityError(f"{parts.name}: do_pad is off, so images of different tiling fit no tensor")
        return cls(
            token=named_token(parts, "image_token", "<image>"),
            around_token=named_token(parts, "fake_image_token", "<fake_token_around_image>"),
            global_token=named_token(parts, "global_image_token", "<global-img>"),
            tokens_per_tile=processor_setting(parts, "image_seq_len", 169),
            longest_edge=positive(images.size.get("longest_edge"), "size.longest_edge", parts),
            tile=positive(images.max_image_size.get("longest_edge"), "max_image_size.longest_edge", parts),
            splits=bool(images.do_image_splitting),
        )

    @property
    def placeholder(self) -> str:
        """One media token."""
        return self.token

    def measure(self, height: int, width: int, num_images: int = 1) -> ImageLayout:
        """The layout of an image of this size."""
        rows, columns = self.grid(height, width)
        tiles = rows * columns + 1
        return ImageLayout(
            text=self._text(rows, columns),
            runs=(self.tokens_per_tile,) * tiles,
            num_patches=tiles * (self.tile // self.vision_patch_size) ** 2,
        )

    def _text(self, rows: int, columns: int) -> str:
        lines = [
            "".join(f"{self.around_token}<row_{row}_col_{column}>{self.token}" for column in range(1, columns + 1))
            for row in range(1, rows + 1)
        ]
        whole = f"{self.around_token}{self.global_token}{self.token}{self.around_token}"
        return "".join(f"{line}\n" for line in lines) + (f"\n{whole}" if lines else whole)

    def grid(self, height: int, width: int) -> tuple[int, int]:
        """(rows, columns) of tiles beside the global one, (0, 0) for an image that is not split.

        Source: ``resize_for_vision_encoder`` and ``split_images`` of the SmolVLM image processor.
        """
        if not self.splits:
            return 0, 0
        height, width = self.scaled(height, width)
        ratio = width / height
        if width >= height:
            columns = math.ceil(width / self.tile)
            rows = math.ceil(int(columns * self.tile / ratio) / self.tile)
        else:
            rows = math.ceil(height / self.tile)
            columns = math.ceil(int(rows * self.tile * ratio) / self.tile)
        return (rows, columns) if rows * columns > 1 else (0, 0)

    def scaled(self, height: int, width: int) -> tuple[int, int]:
        """(height, width) with the longest edge as set, the other even. Source: ``get_resize_output_image_size``."""
        ratio = width / height
        if width >= height:
            width, height = self.longest_edge, int(self.longest_edge / ratio)
            height += height % 2
        else:
            height, width = self.longest_edge, int(self.longest_edge * ratio)
            width += width % 2
        height, width = max(height, 1), max(width, 1)
        ratio = width / height
        if width >= height and width > MAX_SIDE:
            width, height = MAX_SIDE, int(MAX_SIDE / ratio)
        elif height > width and height > MAX_SIDE:
            height, width = MAX_SIDE, int(MAX_SIDE * ratio)
        return max(height, 1), max(width, 1)

    def produced(self, tensors: dict[str, Tensor], index: int) -> object:
        """(rows, columns) of the image at ``index``, and the size of its tiles; rows and cols list samples first."""
        rows, columns = int(tensors["rows"][0][index]), int(tensors["cols"][0][index])
        return rows, columns, tuple(tensors["pixel_values"].shape[-2:])

    def expected(self, layout: ImageLayout) -> object:
        """The same, read from the layout: a line per row, and one empty line."""
        rows = max(0, layout.text.count("\n") - 1)
        return rows, (len(layout.runs) - 1) // max(1, rows), (self.tile, self.tile)
