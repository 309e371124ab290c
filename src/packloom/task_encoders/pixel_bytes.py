"""Rows and batches whose pixels may be bytes in; rows that can be joined, and batches with their tables, out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from packloom.pixels import PIXELS, decode_pixels
from packloom.task_encoders.family import VideoRule
from packloom.task_encoders.fast_media import FastMedia
from packloom.types import Row

_IMAGES, _VIDEOS = "pixel_values", "pixel_values_videos"


def in_floats(tensors: Mapping[str, Tensor], fast: FastMedia | None) -> dict[str, Tensor]:
    """The tensors of a row's images, with the processor's float pixels."""
    pixels = tensors.get(_IMAGES)
    if fast is None or pixels is None or pixels.dtype != torch.uint8:
        return dict(tensors)
    return {**tensors, _IMAGES: decode_pixels(pixels, fast.table, frames=fast.frames)}


def alike(rows: Sequence[Row], fast: FastMedia | None) -> Sequence[Row]:
    """The rows, all with float images if one of them has frames of a video among its images: those are floats."""
    kinds = {row.media_tensors[_IMAGES].dtype for row in rows if _IMAGES in row.media_tensors}
    if len(kinds) < 2:
        return rows
    return [replace(row, media_tensors=in_floats(row.media_tensors, fast)) for row in rows]


def add_tables(batch: dict[str, Any], fast: FastMedia | None, videos: VideoRule | None) -> bool:
    """Give the batch the tables of its bytes, see ``pixels.expand_pixels``; whether it has any."""
    sources: dict[str, tuple[Tensor, int]] = {}
    if fast is not None:
        sources[_IMAGES] = (fast.table, fast.frames)
    if videos is not None and videos.pixel_table is not None:
        sources[_VIDEOS] = (videos.pixel_table, videos.pixel_frames)
    in_bytes = [name for name in sources if name in batch and batch[name].dtype == torch.uint8]
    for name in in_bytes:
        table, frames = PIXELS[name]
        batch[table], batch[frames] = sources[name]
    return bool(in_bytes)
