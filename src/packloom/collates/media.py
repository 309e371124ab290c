"""Media tensors of rows go in; each key, concatenated in row order, comes out, and an unknown key is refused."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from packloom.errors import BatchError
from packloom.types import MediaKind, Row


@dataclass(frozen=True, kw_only=True)
class MediaField:
    """One key of a model's media input; rows are concatenated on its first axis.

    Keys of one ``kind`` describe the same media, so a row brings either the keys that the others bring, or none.
    ``pads`` lets rows of different sizes be zero-padded to the largest, as the models' processors do within one call:
    ``"images"`` is [N, C, H, W] or [N, tiles, C, H, W], in floats (zero is the pad only after normalisation);
    ``"mask"`` is their mask, without C. The batch must hold ``image_sizes`` or such a mask, by which a model finds
    the real part.
    """

    name: str
    kind: MediaKind
    pads: Literal["no", "images", "mask"] = "no"


#: The keys of transformers' processors that concatenate; a family adds its own through the collate's ``media_fields``.
MEDIA_FIELDS = (
    MediaField(name="pixel_values", kind="image", pads="images"),
    MediaField(name="image_grid_thw", kind="image"),
    MediaField(name="image_sizes", kind="image"),
    MediaField(name="image_position_ids", kind="image"),
    MediaField(name="pixel_attention_mask", kind="image", pads="mask"),
    MediaField(name="batch_num_images", kind="image"),
    MediaField(name="num_crops", kind="image"),
    MediaField(name="spatial_shapes", kind="image"),
    MediaField(name="pixel_values_videos", kind="video"),
    MediaField(name="video_grid_thw", kind="video"),
    MediaField(name="second_per_grid_ts", kind="video"),
    MediaField(name="video_position_ids", kind="video"),
    MediaField(name="pixel_attention_mask_videos", kind="video"),
    MediaField(name="input_features", kind="audio"),
    MediaField(name="feature_attention_mask", kind="audio"),
    MediaField(name="input_features_mask", kind="audio"),
)

#: Patches [P, ...] and the grids [I, 3] whose t·h·w must add up to P.
_GRIDS = {"pixel_values": "image_grid_thw", "pixel_values_videos": "video_grid_thw"}
#: What tells a model which part of a padded image is real.
_SIZE_KEYS = ("image_sizes", "pixel_attention_mask")


def concatenate_media(rows: Sequence[Row], media_fields: Sequence[MediaField] = ()) -> dict[str, Tensor]:
    """Every media key of the batch; a row without media adds nothing, a batch without media has no media keys.

    Raises BatchError for a key that is in no table, for rows that bring different keys for one kind of media, for
    shapes or dtypes that do not go together, and for grids that do not count the patches.
    """
    table = {field.name: field for field in (*MEDIA_FIELDS, *media_fields)}
    present = [_present(row, table) for row in rows]
    _check_companions(rows, present, table)
    names = dict.fromkeys(name for tensors in present for name in tensors)
    return {name: _concatenate(table[name], rows, present) for name in names}


def _present(row: Row, table: Mapping[str, MediaField]) -> dict[str, Tensor]:
    """The row's media tensors, but for those of no media at all."""
    for name, tensor in row.media_tensors.items():
        if name not in table:
            raise BatchError(
                f"sample {row.sample.key!r} has a media tensor {name!r}, which is in no table (known:"
                f" {', '.join(table)}): give its MediaField to the collate, or drop it in the encoder"
            )
        if not isinstance(tensor, Tensor) or tensor.ndim == 0:
            raise BatchError(
                f"sample {row.sample.key!r}: {name} must be a tensor with an axis of media, got {tensor!r}"
            )
    present = {name: tensor for name, tensor in row.media_tensors.items() if tensor.shape[0]}
    for patches, grid in _GRIDS.items():
        if patches in present and grid in present:
            counted = int(present[grid].prod(dim=-1).sum())
            if counted != present[patches].shape[0]:
                raise BatchError(
                    f"sample {row.sample.key!r}: {grid} counts {counted} patches, {patches} holds"
                    f" {present[patches].shape[0]}: both must describe the same media"
                )
    return present


def _check_companions(
    rows: Sequence[Row], present: Sequence[Mapping[str, Tensor]], table: Mapping[str, MediaField]
) -> None:
    seen: dict[MediaKind, tuple[str, set[str]]] = {}
    for row, tensors in zip(rows, present, strict=True):
        for kind in {table[name].kind for name in tensors}:
            keys = {name for name in tensors if table[name].kind == kind}
            key, expected = seen.setdefault(kind, (row.sample.key, keys))
            if keys != expected:
                raise BatchError(
                    f"sample {row.sample.key!r} has the {kind} keys {sorted(keys)}, sample {key!r} has"
                    f" {sorted(expected)}: all samples of a batch must come from one encoder"
                )


def _concatenate(field: MediaField, rows: Sequence[Row], present: Sequence[Mapping[str, Tensor]]) -> Tensor:
    pairs = [(row.sample.key, tensors) for row, tensors in zip(rows, present, strict=True) if field.name in tensors]
    (first_key, first), *others = ((key, tensors[field.name]) for key, tensors in pairs)
    for key, tensor in others:
        if tensor.dtype != first.dtype or tensor.ndim != first.ndim:
            raise BatchError(
                f"{field.name} is {first.dtype} of rank {first.ndim} in sample {first_key!r}, {tensor.dtype} of rank"
                f" {tensor.ndim} in sample {key!r}: all samples of a batch must come from one encoder"
            )
    pieces = [tensors[field.name] for _, tensors in pairs]
    if len({piece.shape[1:] for piece in pieces}) == 1:
        return torch.cat(pieces)
    sized = any(name in tensors for name in _SIZE_KEYS for _, tensors in pairs)
    if not sized or not _can_pad(field, pieces):
        shapes = ", ".join(f"{key!r}: {list(piece.shape)}" for (key, _), piece in zip(pairs, pieces, strict=True))
        raise BatchError(
            f"{field.name} of different shapes cannot share a batch ({shapes}): give all media one size, or bring"
            f" {' or '.join(_SIZE_KEYS)} with float images that can be padded"
        )
    return _pad_and_concatenate(pieces)


def _can_pad(field: MediaField, pieces: Sequence[Tensor]) -> bool:
    if field.pads == "images":
        same_channels = len({piece.shape[-3:-2] for piece in pieces}) == 1
        return pieces[0].ndim >= 4 and pieces[0].is_floating_point() and same_channels
    return field.pads == "mask" and pieces[0].ndim >= 3


def _pad_and_concatenate(pieces: Sequence[Tensor]) -> Tensor:
    largest = [max(sizes) for sizes in zip(*(piece.shape[1:] for piece in pieces), strict=True)]
    out = pieces[0].new_zeros((sum(piece.shape[0] for piece in pieces), *largest))
    start = 0
    for piece in pieces:
        own = out[start : start + piece.shape[0]]
        own[tuple(slice(size) for size in piece.shape)] = piece
        start += piece.shape[0]
    return out
