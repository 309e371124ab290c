"""Loaded image tensors with pixels as bytes: images and their layouts go in, what the model's processor would give out.

Nothing is normalised in a worker: images are resized and cut as bytes, and the table of their values travels along.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from packloom.errors import CapabilityError
from packloom.rooms import hand_over_room
from packloom.task_encoders.family import ImageLayout, ImageRule
from packloom.task_encoders.image_backends import Backend, Resize, backend_of, make_resize, pixel_table, run_processor


@runtime_checkable
class PatchRule(Protocol):
    """An image rule that can cut an image into patches by itself."""

    @property
    def frames(self) -> int:
        """Times that the processor repeats a still image in each flattened patch; 0 where it leaves patches whole."""
        ...

    @property
    def patch_shape(self) -> tuple[int, int, int]:
        """(C, h, w) of a patch."""
        ...

    def patches(self, image: Image.Image, resize: Resize, out: np.ndarray) -> None:
        """Write the image's patches [P, C, h, w] uint8 in the processor's order."""
        ...


class FastMedia(Protocol):
    """Makes an image processor's tensors, with ``pixel_values`` as bytes."""

    @property
    def table(self) -> Tensor:
        """[C, 256] float32, see ``pixels.decode_pixels``."""
        ...

    @property
    def frames(self) -> int:
        """See ``pixels.decode_pixels``."""
        ...

    def room(self, num_patches: int) -> Tensor | None:
        """Memory for the pixels of so many patches, which ``process`` then writes into parts of; None if it cannot."""
        ...

    def process(
        self, images: Sequence[Image.Image], layouts: Sequence[ImageLayout], room: Tensor | None = None
    ) -> dict[str, Tensor]:
        """One sample's tensors; raises MediaError for an image that the processor refuses."""
        ...


@dataclass(frozen=True, kw_only=True)
class PatchBytes:
    """Patches cut here, in one pass."""

    rule: PatchRule
    resize: Resize
    table: Tensor

    @property
    def frames(self) -> int:
        """Those of the rule."""
        return self.rule.frames

    def room(self, num_patches: int) -> Tensor:
        """[P, C, h, w] uint8."""
        return hand_over_room((num_patches, *self.rule.patch_shape), torch.uint8)

    def process(
        self, images: Sequence[Image.Image], layouts: Sequence[ImageLayout], room: Tensor | None = None
    ) -> dict[str, Tensor]:
        """``pixel_values`` [P, C, h, w] uint8, which are ``room`` where it is given, and ``image_grid_thw`` [I, 3]."""
        pixels = self.room(sum(layout.num_patches for layout in layouts)) if room is None else room
        patches, first = pixels.numpy(), 0
        for image, layout in zip(images, layouts, strict=True):
            self.rule.patches(image, self.resize, patches[first : first + layout.num_patches])
            first += layout.num_patches
        return {"pixel_values": pixels, "image_grid_thw": torch.tensor([layout.grid_thw for layout in layouts])}


@dataclass(frozen=True, kw_only=True)
class ProcessorBytes:
    """The processor's own resizing, cropping and tiling, told to leave bytes as they are."""

    images: Any
    rule: ImageRule
    table: Tensor
    frames: int = 0

    def room(self, num_patches: int) -> None:
        """The processor uses memory of its own."""

    def process(
        self, images: Sequence[Image.Image], layouts: Sequence[ImageLayout], room: Tensor | None = None
    ) -> dict[str, Tensor]:
        """The processor's tensors, ``pixel_values`` as uint8 in its shape."""
        options = {**self.rule.call_options, "do_rescale": False, "do_normalize": False}
        made = run_processor(self.images, images, options)
        return {**made, "pixel_values": made["pixel_values"].to(torch.uint8)}


def make_fast_media(images: Any, rule: ImageRule, backend: Backend) -> FastMedia:
    """Raises CapabilityError, with the reason, where bytes and a table cannot stand for this processor's pixels."""
    for setting in ("do_resize", "do_rescale"):
        if not getattr(images, setting, False):
            raise CapabilityError(f"the image processor's {setting} is off")
    table = pixel_table(images, backend)
    if isinstance(rule, PatchRule):
        return PatchBytes(rule=rule, resize=make_resize(images, backend), table=table)
    if backend != backend_of(images):
        raise CapabilityError(f"only the processor itself can cut this family's images, and {backend} is not installed")
    return ProcessorBytes(images=images, rule=rule, table=table)
