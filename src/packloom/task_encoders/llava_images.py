"""LLaVA-1.5 images: any size in, one cropped picture with a fixed run of placeholder tokens out."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

from packloom.task_encoders.family import ImageLayout
from packloom.task_encoders.processors import ProcessorParts
from packloom.task_encoders.settings_images import fixed_size, image_processor_of, named_token, processor_setting

MEDIA_TOKENS = ("<image>",)


@dataclass(frozen=True, kw_only=True)
class LlavaImageRule:
    """Every image becomes one picture of the same size."""

    token: str
    patch_size: int
    height: int
    width: int
    extra_tokens: int  # class tokens that are kept, minus those that the feature strategy drops
    model_keys: tuple[str, ...] = ("pixel_values",)
    helper_keys: tuple[str, ...] = ()
    call_options: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def from_parts(cls, parts: ProcessorParts) -> LlavaImageRule:
        """Read the geometry from a loaded processor."""
        images = image_processor_of(parts)
        crops = images.do_center_crop
        height, width = fixed_size(images.crop_size if crops else images.size, "crop_size" if crops else "size", parts)
        return cls(
            token=named_token(parts, "image_token", parts.settings.get("image_token", "<image>")),
            patch_size=processor_setting(parts, "patch_size"),
            height=height,
            width=width,
            extra_tokens=extra_tokens(parts),
        )

    @property
    def placeholder(self) -> str:
        """One media token."""
        return self.token

    def measure(self, height: int, width: int, num_images: int = 1) -> ImageLayout:
        """The same layout for every size."""
        patches = (self.height // self.patch_size) * (self.width // self.patch_size)
        return ImageLayout(text=self.token, runs=(patches + self.extra_tokens,), num_patches=patches)

    def produced(self, tensors: dict[str, Tensor], index: int) -> object:
        """Media tokens that the picture at ``index`` has room for, by its size."""
        height, width = tensors["pixel_values"][index].shape[-2:]
        return (height // self.patch_size) * (width // self.patch_size) + self.extra_tokens

    def expected(self, layout: ImageLayout) -> object:
        """The predicted number."""
        return layout.runs[0]


def extra_tokens(parts: ProcessorParts) -> int:
    """Tokens of a picture beyond its patches: the vision tower's class tokens, less the one that is dropped."""
    added = parts.settings.get("num_additional_image_tokens") or 0
    return int(added) - (parts.settings.get("vision_feature_select_strategy") == "default")
