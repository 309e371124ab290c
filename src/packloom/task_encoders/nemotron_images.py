"""Nemotron-3-Nano-Omni images: a size in, its patch grid and run of image tokens out."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

from packloom.errors import MediaError, ProcessorError
from packloom.task_encoders.family import ImageLayout
from packloom.task_encoders.processors import ProcessorParts
from packloom.task_encoders.settings_images import image_processor_of, positive

MEDIA_TOKENS = ("<img>", "<image>", "</img>")


@dataclass(frozen=True, kw_only=True)
class NemotronOmniImageRule:
    """An image is scaled into a budget of patches, which the images of one sample share."""

    patch_size: int
    merge_size: int
    min_patches: int
    max_patches: int  # 0: no bound
    context_patches: int  # what fits the language model's context
    token: str = "<image>"
    model_keys: tuple[str, ...] = ("pixel_values", "image_grid_hw")
    helper_keys: tuple[str, ...] = ()
    call_options: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def from_parts(cls, parts: ProcessorParts) -> NemotronOmniImageRule:
        """Read the geometry from a loaded image processor."""
        images = image_processor_of(parts)
        if not 0 < images.downsample_ratio <= 1:
            raise ProcessorError(f"{parts.name}: downsample_ratio is {images.downsample_ratio}, expected one in (0, 1]")
        merge_size = round(1 / images.downsample_ratio)
        return cls(
            patch_size=positive(images.patch_size, "patch_size", parts),
            merge_size=merge_size,
            min_patches=positive(images.min_num_patches, "min_num_patches", parts),
            max_patches=images.max_num_patches and positive(images.max_num_patches, "max_num_patches", parts),
            context_patches=(positive(images.max_model_len, "max_model_len", parts) - 4) * merge_size**2,
        )

    @property
    def placeholder(self) -> str:
        """One image token."""
        return self.token

    def measure(self, height: int, width: int, num_images: int = 1) -> ImageLayout:
        """The layout of an image of this size among ``num_images`` of one sample."""
        rows, columns = self.grid(height, width, self._budget(num_images))
        return ImageLayout(
            text="<img><image></img>",
            runs=(rows * columns // self.merge_size**2,),
            num_patches=rows * columns,
            grid_thw=(1, rows, columns),
        )

    def _budget(self, num_images: int) -> int:
        """The most patches an image may have. Source: ``_preprocess`` of the NemotronH-Omni image processor."""
        patches = max(self.context_patches, self.min_patches * num_images)
        return max(min(patches, self.max_patches) if self.max_patches else patches, self.min_patches)

    def grid(self, height: int, width: int, max_patches: int) -> tuple[int, int]:
        """(rows, columns) of patches. Source: ``get_patch_grid_size`` of the NemotronH-Omni image processor.

        Each side is rounded up to whole patches, both are scaled into the budget, and then to whole merged patches.
        Raises MediaError where that leaves nothing of one side.
        """
        rows, columns = (round(side / self.patch_size + 0.5) for side in (height, width))
        shrink = min(math.sqrt(max_patches / (rows * columns)), 1.0)
        rows, columns = math.floor(shrink * rows), math.floor(shrink * columns)
        if not rows or not columns:
            raise MediaError(
                f"an image of {width}x{height} pixels is too thin for {max_patches} patches", code="media.refused"
            )
        if max_patches > self.min_patches and rows * columns < self.min_patches:
            grow = math.sqrt(self.min_patches / (rows * columns))
            rows, columns = math.ceil(grow * rows), math.ceil(grow * columns)
        rows = self._whole(rows, columns, max_patches)
        return rows, self._whole(columns, rows, max_patches)

    def _whole(self, side: int, other: int, max_patches: int) -> int:
        """``side`` up to a multiple of the merge size if the budget allows, else down."""
        rest = side % self.merge_size
        if not rest:
            return side
        larger = side + self.merge_size - rest
        return larger if larger * other <= max_patches else max(self.merge_size, side - rest)

    def produced(self, tensors: dict[str, Tensor], index: int) -> object:
        """The grid that the processor reports for the image at ``index``."""
        return tuple(tensors["image_grid_hw"][index].tolist())

    def expected(self, layout: ImageLayout) -> object:
        """The grid predicted from the size."""
        return layout.grid_thw and layout.grid_thw[1:]
