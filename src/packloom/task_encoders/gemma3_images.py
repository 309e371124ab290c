"""Gemma 3 images: any size in, one square of a fixed number of soft tokens between its marks out."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

from torch import Tensor

from packloom.task_encoders.family import ImageLayout
from packloom.task_encoders.processors import ProcessorParts
from packloom.task_encoders.settings_images import fixed_size, image_processor_of, named_token, processor_setting

MEDIA_TOKENS = ("<start_of_image>", "<image_soft_token>", "<end_of_image>")

#: What Gemma3Processor passes to its image processor on every call; it overrules the image processor's own settings.
CALL_OPTIONS = MappingProxyType(
    {
        "do_convert_rgb": True,
        "do_pan_and_scan": False,
        "pan_and_scan_min_crop_size": 256,
        "pan_and_scan_max_num_crops": 4,
        "pan_and_scan_min_ratio_to_activate": 1.2,
    }
)

logger = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class Gemma3ImageRule:
    """Every image becomes one square picture; crops ("pan and scan") are off, as in the family's processor class."""

    token: str
    start_token: str
    end_token: str
    num_tokens: int
    size: tuple[int, int]
    vision_patch_size: int = 14  # not among the processor's settings; counts patches for the media budget
    model_keys: tuple[str, ...] = ("pixel_values",)
    helper_keys: tuple[str, ...] = ("num_crops",)
    call_options: Mapping[str, Any] = field(default_factory=lambda: dict(CALL_OPTIONS))

    @classmethod
    def from_parts(cls, parts: ProcessorParts) -> Gemma3ImageRule:
        """Read the geometry from a loaded processor."""
        images = image_processor_of(parts)
        if images.do_pan_and_scan:
            logger.warning(
                "%s: do_pan_and_scan is set in the image processor's settings, but Gemma3Processor switches it off on"
                " every call; packloom does the same",
                parts.name,
            )
        return cls(
            token=named_token(parts, "image_token"),
            start_token=named_token(parts, "boi_token"),
            end_token=named_token(parts, "eoi_token"),
            num_tokens=processor_setting(parts, "image_seq_length", 256),
            size=fixed_size(images.size, "size", parts),
        )

    @property
    def placeholder(self) -> str:
        """The start mark stands for the whole image in the template."""
        return self.start_token

    def measure(self, height: int, width: int, num_images: int = 1) -> ImageLayout:
        """The same layout for every size."""
        tall, wide = self.size
        return ImageLayout(
            text=f"\n\n{self.start_token}{self.token}{self.end_token}\n\n",
            runs=(self.num_tokens,),
            num_patches=(tall // self.vision_patch_size) * (wide // self.vision_patch_size),
        )

    def produced(self, tensors: dict[str, Tensor], index: int) -> object:
        """Pictures made of the image at ``index``, and their size."""
        return 1 + int(tensors["num_crops"][index]), tuple(tensors["pixel_values"].shape[-2:])

    def expected(self, layout: ImageLayout) -> object:
        """One picture per run of soft tokens."""
        return len(layout.runs), self.size
