"""LLaVA-NeXT and LLaVA-OneVision images: a size in, tiles of the best canvas and their run of tokens out."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

from packloom.errors import CapabilityError, ProcessorError
from packloom.task_encoders.family import ImageLayout
from packloom.task_encoders.llava_images import extra_tokens
from packloom.task_encoders.processors import ProcessorParts
from packloom.task_encoders.settings_images import (
    fixed_size,
    image_processor_of,
    named_token,
    positive,
    processor_setting,
)

#: media key → join of rows: a row is [I, tiles, C, H, W], padded with zero tiles; the model drops those by image_sizes
MEDIA_JOINS = {"pixel_values": "pad_tiles"}

NEXT_MEDIA_TOKENS = ("<image>",)
ONEVISION_MEDIA_TOKENS = ("<image>", "<video>")


@dataclass(frozen=True, kw_only=True)
class AnyresImageRule:
    """An image is fitted into the canvas that keeps most of it, cut into square tiles, with a whole view before them.

    The padding of the canvas has no tokens; each row of tile tokens ends on one newline token. ``max_area`` bounds the
    tile tokens in units of one tile (OneVision's anyres_max). ``single_view_of_many``: where a sample has several
    images, each is its whole view only.
    """

    token: str
    tile_height: int
    tile_width: int
    grid_height: int  # tokens in one tile
    grid_width: int
    extra_tokens: int
    canvases: tuple[tuple[int, int], ...]  # (height, width) in pixels
    max_area: int | None = None
    single_view_of_many: bool = False
    model_keys: tuple[str, ...] = ("pixel_values", "image_sizes")
    helper_keys: tuple[str, ...] = ()
    call_options: Mapping[str, Any] = field(default_factory=dict)

    @property
    def placeholder(self) -> str:
        """One media token."""
        return self.token

    def measure(self, height: int, width: int, num_images: int = 1) -> ImageLayout:
        """The layout of an image of this size in a sample of ``num_images``."""
        view = self.grid_height * self.grid_width
        if self.single_view_of_many and num_images > 1:
            return ImageLayout(text=self.token, runs=(view + 1 + self.extra_tokens,), num_patches=view)
        canvas_height, canvas_width = self.canvas(height, width)
        tiles = math.ceil(canvas_height / self.tile_height) * math.ceil(canvas_width / self.tile_height) + 1
        rows, columns = self.unpadded(height, width, canvas_height, canvas_width)
        return ImageLayout(
            text=self.token,
            runs=(view + rows * (columns + 1) + self.extra_tokens,),
            num_patches=view * tiles,
        )

    def canvas(self, height: int, width: int) -> tuple[int, int]:
        """(height, width) of the canvas that keeps most and then wastes least. Source: ``select_best_resolution``."""
        best, best_score = self.canvases[0], (0, -math.inf)
        for canvas_height, canvas_width in self.canvases:
            scale = min(canvas_width / width, canvas_height / height)
            kept = min(int(width * scale) * int(height * scale), width * height)
            score = (kept, kept - canvas_height * canvas_width)
            if score > best_score:
                best, best_score = (canvas_height, canvas_width), score
        return best

    def unpadded(self, height: int, width: int, canvas_height: int, canvas_width: int) -> tuple[int, int]:
        """(rows, columns) of tile tokens without the canvas' padding. Source: ``_get_unpadded_features``."""
        rows = self.grid_height * (canvas_height // self.tile_height)
        columns = self.grid_width * (canvas_width // self.tile_width)
        if width / height > columns / rows:
            rows -= (rows - int(round(height * (columns / width), 7))) // 2 * 2
        else:
            columns -= (columns - int(round(width * (rows / height), 7))) // 2 * 2
        if self.max_area is not None:
            ratio = math.sqrt(rows * columns / (self.max_area * self.grid_height**2))
            if ratio > 1.1:
                return int(rows // ratio), int(columns // ratio)
        return rows, columns

    def produced(self, tensors: dict[str, Tensor], index: int) -> object:
        """Tokens by the reported size, and tiles by the pixels, of the image at ``index`` of one sample."""
        sizes = tensors["image_sizes"]
        height, width = sizes[index].tolist()
        layout = self.measure(height, width, num_images=len(sizes))
        tiles = tensors["pixel_values"][index]
        # the tiles that only pad an image to the row's largest are zero throughout
        num_tiles = int(tiles.flatten(start_dim=1).any(dim=1).sum())
        return layout.runs[0], num_tiles, tuple(tiles.shape[-2:])

    def expected(self, layout: ImageLayout) -> object:
        """The predicted numbers."""
        num_tiles = layout.num_patches // (self.grid_height * self.grid_width)
        return layout.runs[0], num_tiles, (self.tile_height, self.tile_width)


def llava_next_image_rule(parts: ProcessorParts) -> AnyresImageRule:
    """The image geometry of a LLaVA-NeXT processor."""
    height, width = _tile(parts)
    patch_size = processor_setting(parts, "patch_size")
    return AnyresImageRule(
        token=_token(parts),
        tile_height=height,
        tile_width=width,
        grid_height=height // patch_size,
        grid_width=width // patch_size,
        extra_tokens=extra_tokens(parts),
        canvases=_canvases(parts),
        call_options={"do_pad": True},  # as LlavaNextProcessor passes on every call
    )


def llava_onevision_image_rule(parts: ProcessorParts) -> AnyresImageRule:
    """The image geometry of a LLaVA-OneVision processor."""
    height, width = _tile(parts)
    side = math.isqrt(processor_setting(parts, "num_image_tokens"))
    if side**2 != parts.settings["num_image_tokens"]:
        raise ProcessorError(f"{parts.name}: num_image_tokens {parts.settings['num_image_tokens']} is no square number")
    aspect = str(parts.settings.get("vision_aspect_ratio", "anyres_max_9"))
    area = aspect.removeprefix("anyres_max_")
    if not area.isdecimal():
        raise CapabilityError(f"{parts.name}: vision_aspect_ratio is {aspect!r}; packloom knows 'anyres_max_<number>'")
    return AnyresImageRule(
        token=_token(parts),
        tile_height=height,
        tile_width=width,
        grid_height=side,
        grid_width=side,
        extra_tokens=0 - (parts.settings.get("vision_feature_select_strategy") == "default"),
        canvases=_canvases(parts),
        max_area=positive(int(area), "vision_aspect_ratio", parts),
        single_view_of_many=True,
        model_keys=("pixel_values", "image_sizes", "batch_num_images"),
    )


def _token(parts: ProcessorParts) -> str:
    return named_token(parts, "image_token", parts.settings.get("image_token", "<image>"))


def _tile(parts: ProcessorParts) -> tuple[int, int]:
    """(height, width) of one tile after the image processor is done with it."""
    images = image_processor_of(parts)
    if images.do_center_crop:
        return fixed_size(images.crop_size, "crop_size", parts)
    shortest = images.size.get("shortest_edge")
    if shortest is None:
        return fixed_size(images.size, "size", parts)
    side = positive(shortest, "size.shortest_edge", parts)
    return side, side  # tiles are cut square


def _canvases(parts: ProcessorParts) -> tuple[tuple[int, int], ...]:
    canvases: Sequence[Sequence[int]] = image_processor_of(parts).image_grid_pinpoints
    if not canvases:
        raise ProcessorError(f"{parts.name}: the image processor has no image_grid_pinpoints")
    return tuple((int(height), int(width)) for height, width in canvases)
