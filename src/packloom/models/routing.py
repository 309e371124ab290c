"""A batch and a pipeline stage go in; the fields that this stage reads come out."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any, Literal, get_args

from packloom.errors import BatchError, ConfigError

Stage = Literal["first", "middle", "last", "all"]

#: Where segments lie in a batch.
PACKED_KEYS = (
    "pack_segment_ids",
    "cu_seqlens_q",
    "cu_seqlens_kv",
    "cu_seqlens_q_padded",
    "cu_seqlens_kv_padded",
    "max_seqlen_q",
    "max_seqlen_kv",
)
#: What labels mean travels with them.
LOSS_KEYS = ("labels", "loss_mask", "label_shift")
#: Facts about the batch that no model reads.
METADATA_KEYS = ("source_sample_num", "num_input_tokens", "num_loss_tokens", "sample_keys", "layout")

# Every stage attends, rotates and (in a mixture of experts) balances, and some models compute mRoPE again on each
# stage from ids and grids.
_EVERY_STAGE = (
    "input_ids",
    "position_ids",
    "attention_mask",
    "padding_mask",
    *PACKED_KEYS,
    "mm_token_type_ids",
    "token_type_ids",
    "image_grid_thw",
    "video_grid_thw",
    "second_per_grid_ts",
)
# The vision or audio tower runs on the first stage only.
_FIRST_STAGE = (
    "pixel_values",
    "pixel_values_videos",
    "pixel_attention_mask",
    "pixel_attention_mask_videos",
    "image_sizes",
    "image_position_ids",
    "video_position_ids",
    "batch_num_images",
    "num_crops",
    "spatial_shapes",
    "input_features",
    "input_features_mask",
    "feature_attention_mask",
)
_STAGE_KEYS: dict[Stage, frozenset[str]] = {
    "first": frozenset(_EVERY_STAGE + _FIRST_STAGE),
    "middle": frozenset(_EVERY_STAGE),
    "last": frozenset(_EVERY_STAGE + LOSS_KEYS),
    "all": frozenset(_EVERY_STAGE + _FIRST_STAGE + LOSS_KEYS),
}
_KNOWN_KEYS = _STAGE_KEYS["all"].union(METADATA_KEYS)


def route(batch: Mapping[str, Any], stage: Stage, *, extra: Collection[str] = ()) -> dict[str, Any]:
    """The fields of ``batch`` that one pipeline stage reads; ``"all"`` is a model of one stage.

    Every stage reads ids, positions, masks, grids and the packed metadata; the first adds pixels and their like, the
    last adds labels, loss mask and ``label_shift``. Counters and other metadata go to no stage: read them from the
    batch. ``extra`` names further keys of your own, which every stage reads.

    Raises BatchError for a key that is none of these, so that nothing a collate made is dropped in silence, and
    ConfigError for an unknown stage.
    """
    if stage not in _STAGE_KEYS:
        raise ConfigError(f"stage must be one of {', '.join(get_args(Stage))}, got {stage!r}")
    if not isinstance(batch, Mapping):
        raise BatchError(f"a batch is a mapping from field name to tensor, got {type(batch).__name__}")
    unknown = sorted(set(batch) - _KNOWN_KEYS - set(extra))
    if unknown:
        raise BatchError(
            f"no stage is known to read {', '.join(map(repr, unknown))}; "
            "name it in route(..., extra=[...]) if your model does, else remove it in the collate"
        )
    wanted = _STAGE_KEYS[stage].union(extra)
    return {name: value for name, value in batch.items() if name in wanted}
