"""Media still compressed in; their token counts from the headers, and later the processor's tensors, out."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from PIL import Image
from torch import Tensor

from packloom.config import SampleLimits
from packloom.errors import MediaError, ProcessorError
from packloom.task_encoders.family import ImageLayout, ImageRule
from packloom.task_encoders.fast_media import FastMedia
from packloom.task_encoders.image_backends import run_processor
from packloom.task_encoders.images import decode_rgb, read_header
from packloom.task_encoders.limits import check_count, check_pixels, check_tokens
from packloom.task_encoders.processors import ProcessorParts
from packloom.types import EncodedMedia, Media

#: Above this an upper bound is not tried on an image of its size: that would take gigabytes.
PROBED_PIXELS = 1 << 22


@dataclass(frozen=True, kw_only=True)
class ImageLoader:
    """Measures images by their headers and processes them with the family's own image processor.

    ``rule`` is None for a text-only processor: then any image is refused. With ``fast`` pixels come as bytes.
    """

    parts: ProcessorParts
    rule: ImageRule | None
    fast: FastMedia | None = None

    def measure(self, media: Sequence[Media], limits: SampleLimits) -> list[tuple[EncodedMedia, ImageLayout]]:
        """Each medium with its layout, nothing decoded. Raises MediaError or BudgetError."""
        check_count(len(media), limits.max_images, kind="image")
        measured = [self._measure(item, limits, len(media)) for item in media]
        check_tokens((encoded for encoded, _ in measured), limits.max_image_tokens, kind="image")
        return measured

    def _measure(self, media: Media, limits: SampleLimits, num_images: int) -> tuple[EncodedMedia, ImageLayout]:
        if media.kind != "image" or self.rule is None:
            raise MediaError(
                f"{media.name} is {media.kind}, which this encoder ({self.parts.name}) does not take",
                code="media.unsupported",
            )
        header = read_header(media)
        check_pixels(media.name, header.height, header.width, limits)
        layout = self.rule.measure(header.height, header.width, num_images)
        encoded = EncodedMedia(
            media=media,
            height=header.height,
            width=header.width,
            num_tokens=sum(layout.runs),
            num_patches=layout.num_patches,
            grid_thw=layout.grid_thw,
        )
        return encoded, layout

    def rooms(self, num_patches: Sequence[int]) -> Sequence[Tensor | None]:
        """For each sample of a batch the memory of its pixels, all in one piece: they need not be joined later."""
        room = self.fast.room(sum(num_patches)) if self.fast is not None and any(num_patches) else None
        return [None] * len(num_patches) if room is None else torch.split(room, list(num_patches))

    def load(self, media: Sequence[EncodedMedia], room: Tensor | None = None) -> dict[str, Tensor]:
        """Decode and process one sample's media; raises MediaError if a count differs from the predicted one."""
        if not media or self.rule is None:
            return {}
        images = [decode_rgb(item.media) for item in media]
        for item, image in zip(media, images, strict=True):
            if image.size != (item.width, item.height):
                raise MediaError(
                    f"{item.media.name}: the header says {item.width}x{item.height}, the pixels are"
                    f" {image.width}x{image.height}",
                    code="media.size_differs",
                )
        layouts = [self.rule.measure(item.height, item.width, len(media)) for item in media]
        tensors = self._process(images) if self.fast is None else self.fast.process(images, layouts, room)
        for index, (item, layout) in enumerate(zip(media, layouts, strict=True)):
            self._compare(item.media.name, tensors, index, layout)
        return {key: tensors[key] for key in self.rule.model_keys}

    def _process(self, images: Sequence[Image.Image]) -> dict[str, Tensor]:
        if self.parts.image_processor is None or self.rule is None:
            return {}
        return run_processor(self.parts.image_processor, images, self.rule.call_options)

    def _compare(self, name: str, tensors: dict[str, Tensor], index: int, layout: ImageLayout) -> None:
        if self.rule is None:
            return
        expected, produced = self.rule.expected(layout), self.rule.produced(tensors, index)
        if expected != produced:
            raise MediaError(
                f"{name}: {expected} was predicted from the header, but the processor made {produced}",
                code="media.count_differs",
            )

    def _check_keys(self, tensors: dict[str, Tensor]) -> None:
        known = {*self.rule.model_keys, *self.rule.helper_keys} if self.rule else set()
        if unknown := sorted(set(tensors) - known):
            raise ProcessorError(
                f"{self.parts.name}: the image processor gives {', '.join(unknown)}, which this family does not route"
            )

    def prove_geometry(self, *, probe_upper_bound: bool) -> None:
        """Run the processor on synthetic images and compare with the rule: a setting without effect is found here.

        Sizes: one below and one above the lower bound, thin ones, and (where asked, for it costs memory) one above the
        upper bound if that is not above PROBED_PIXELS. Raises ProcessorError.
        """
        if self.rule is None:
            return
        sizes = [(20, 20), (150, 220), (31, 190)]
        bound = int(self.parts.image_processor.size["longest_edge"]) if probe_upper_bound else 0  # type: ignore[union-attr]
        if 0 < bound <= PROBED_PIXELS:
            side = math.isqrt(int(bound * 1.3)) + 1
            sizes.append((side, side))
        for height, width in sizes:
            try:
                tensors = self._process([Image.new("RGB", (width, height), (90, 120, 150))])
                self._check_keys(tensors)
                self._compare(f"a synthetic {width}x{height} image", tensors, 0, self.rule.measure(height, width))
            except MediaError as error:
                raise ProcessorError(
                    f"{self.parts.name}: {error.reason}; this version of transformers treats images in a way that"
                    " packloom does not know, or a pixel bound has no effect"
                ) from error
