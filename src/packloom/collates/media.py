"""Media tensors of rows go in; each key, joined in row order, comes out, and an unknown key is refused."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType

from torch import Tensor

from packloom.collates.media_joins import join
from packloom.errors import BatchError
from packloom.types import MediaKind, Row

#: The keys of transformers' processors that join over rows, and the kind of media that they describe.
MEDIA_KEYS: Mapping[str, MediaKind] = MappingProxyType(
    {
        "pixel_values": "image",
        "image_grid_thw": "image",
        "image_sizes": "image",
        "image_position_ids": "image",
        "pixel_attention_mask": "image",
        "batch_num_images": "image",
        "num_crops": "image",
        "spatial_shapes": "image",
        "pixel_values_videos": "video",
        "video_grid_thw": "video",
        "second_per_grid_ts": "video",
        "video_position_ids": "video",
        "pixel_attention_mask_videos": "video",
        "input_features": "audio",
        "feature_attention_mask": "audio",
        "input_features_mask": "audio",
    }
)

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
        if name not in MEDIA_KEYS and name not in media_joins:
            raise BatchError(
                f"sample {key!r} has a media tensor {name!r}, which is in no table (known: {', '.join(MEDIA_KEYS)}):"
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
        for kind in dict.fromkeys(MEDIA_KEYS[name] for name in tensors if name in MEDIA_KEYS):
            keys = sorted(name for name in tensors if MEDIA_KEYS.get(name) == kind)
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
