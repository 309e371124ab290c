"""Media tensors of rows go in; each key, joined in row order, comes out, and an unknown key is refused."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from torch import Tensor

from packloom.collates.media_joins import join
from packloom.errors import BatchError
from packloom.types import MediaKind, Row


@dataclass(frozen=True, kw_only=True)
class MediaField:
    """One key of a model's media input; keys of one ``kind`` describe the same media."""

    name: str
    kind: MediaKind


#: The keys of transformers' processors that join over rows.
MEDIA_FIELDS = (
    MediaField(name="pixel_values", kind="image"),
    MediaField(name="image_grid_thw", kind="image"),
    MediaField(name="image_sizes", kind="image"),
    MediaField(name="image_position_ids", kind="image"),
    MediaField(name="pixel_attention_mask", kind="image"),
    MediaField(name="batch_num_images", kind="image"),
    MediaField(name="num_crops", kind="image"),
    MediaField(name="spatial_shapes", kind="image"),
    MediaField(name="pixel_values_videos", kind="video"),
    MediaField(name="video_grid_thw", kind="video"),
    MediaField(name="second_per_grid_ts", kind="video"),
    MediaField(name="video_second_per_grid", kind="video"),
    MediaField(name="video_position_ids", kind="video"),
    MediaField(name="pixel_attention_mask_videos", kind="video"),
    MediaField(name="input_features", kind="audio"),
    MediaField(name="feature_attention_mask", kind="audio"),
    MediaField(name="input_features_mask", kind="audio"),
)
_KINDS = {field.name: field.kind for field in MEDIA_FIELDS}

#: Patches [P, ...] and the grids [I, 3] whose t·h·w must add up to P.
_GRIDS = {"pixel_values": "image_grid_thw", "pixel_values_videos": "video_grid_thw"}


def join_media(rows: Sequence[Row], media_joins: Mapping[str, str]) -> dict[str, Tensor]:
    """Every media key of the batch; a row without media adds nothing, a batch without media has no media keys.

    ``media_joins`` names the rule (see ``media_joins.JOINS``) of keys that do not simply concatenate, and makes
    further keys known. Raises BatchError for an unknown key, for rows that bring different keys for one kind of
    media, for tensors that the rule cannot join, and for grids that do not count the patches.
    """
    present = [_present(row, media_joins) for row in rows]
    _check_companions(rows, present)
    names = dict.fromkeys(name for tensors in present for name in tensors)
    return {name: _joined(name, media_joins.get(name, "concat"), rows, present) for name in names}


def _present(row: Row, media_joins: Mapping[str, str]) -> dict[str, Tensor]:
    """The row's media tensors, but for those that hold no media."""
    key = row.sample.key
    for name, tensor in row.media_tensors.items():
        if name not in _KINDS and name not in media_joins:
            raise BatchError(
                f"sample {key!r} has a media tensor {name!r}, which is in no table (known: {', '.join(_KINDS)}):"
                " name its rule in the collate's media_joins, or drop it in the encoder"
            )
        if not isinstance(tensor, Tensor) or tensor.ndim == 0:
            raise BatchError(f"sample {key!r}: {name} must be a tensor with an axis of media, got {tensor!r}")
    present = {name: tensor for name, tensor in row.media_tensors.items() if tensor.numel()}
    for patches, grid in _GRIDS.items():
        if patches in present and grid in present:
            counted, held = int(present[grid].prod(dim=-1).sum()), present[patches].shape[0]
            if counted != held:
                raise BatchError(
                    f"sample {key!r}: {grid} counts {counted} patches, {patches} holds {held}:"
                    " both must describe the same media"
                )
    return present


def _check_companions(rows: Sequence[Row], present: Sequence[Mapping[str, Tensor]]) -> None:
    """Keys of one kind describe the same media: a row brings either those that the others bring, or none."""
    seen: dict[MediaKind, tuple[str, list[str]]] = {}
    for row, tensors in zip(rows, present, strict=True):
        for kind in dict.fromkeys(_KINDS[name] for name in tensors if name in _KINDS):
            keys = sorted(name for name in tensors if _KINDS.get(name) == kind)
            first, expected = seen.setdefault(kind, (row.sample.key, keys))
            if keys != expected:
                raise BatchError(
                    f"sample {row.sample.key!r} has the {kind} keys {keys}, sample {first!r} has {expected}:"
                    " all samples of a batch must come from one encoder"
                )


def _joined(name: str, rule: str, rows: Sequence[Row], present: Sequence[Mapping[str, Tensor]]) -> Tensor:
    try:
        return join(rule, [tensors[name] for tensors in present if name in tensors])
    except BatchError as error:
        keys = ", ".join(row.sample.key for row, tensors in zip(rows, present, strict=True) if name in tensors)
        raise BatchError(f"{name} of the samples {keys} cannot be joined: {error}") from error
