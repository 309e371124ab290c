"""A batch and a pipeline stage go in; the fields that this stage reads come out."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any, Literal, get_args

import torch

from packloom.errors import BatchError, ConfigError
from packloom.models.device import to_device
from packloom.models.visual import CONTENT_KEYS, GEOMETRY_KEYS
from packloom.pixels import PIXEL_KEYS, PIXELS, expand_pixels

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
#: Per-token tensors that some models read beside the ids.
TOKEN_TYPE_KEYS = ("mm_token_type_ids", "token_type_ids")
#: Facts about the batch that no model reads.
METADATA_KEYS = (
    "source_sample_num",
    "source_counts",
    "num_input_tokens",
    "num_loss_tokens",
    "sample_keys",
    "source_counts",
    "layout",
)

# Every stage attends, rotates and (in a mixture of experts) balances, and some models compute mRoPE again on each
# stage from ids and grids.
_EVERY_STAGE = (
    "input_ids",
    "position_ids",
    "attention_mask",
    "padding_mask",
    *PACKED_KEYS,
    *TOKEN_TYPE_KEYS,
    *GEOMETRY_KEYS,
)
_STAGE_KEYS: dict[Stage, frozenset[str]] = {
    "first": frozenset(_EVERY_STAGE + CONTENT_KEYS + PIXEL_KEYS),
    "middle": frozenset(_EVERY_STAGE),
    "last": frozenset(_EVERY_STAGE + LOSS_KEYS),
    "all": frozenset(_EVERY_STAGE + CONTENT_KEYS + PIXEL_KEYS + LOSS_KEYS),
}
_KNOWN_KEYS = _STAGE_KEYS["all"].union(METADATA_KEYS)


def route(
    batch: Mapping[str, Any], stage: Stage, *, extra: Collection[str] = (), extra_content: Collection[str] = ()
) -> dict[str, Any]:
    """The fields of ``batch`` that one pipeline stage reads; ``"all"`` is a model of one stage.

    Every stage reads ids, positions, masks, grids and the packed metadata; the first adds pixels and their like, the
    last adds labels, loss mask and ``label_shift``. Counters and other metadata go to no stage: read them from the
    batch. ``extra`` names further keys of your own, which every stage reads; ``extra_content`` those that the tower of
    a new modality reads, on the first stage only. Nothing is renamed. Pixels that travel as bytes become the float
    pixels of the processor, on the device where they are: see ``with_pixels_on``.

    Raises BatchError for a key that is none of these, so that nothing a collate made is dropped in silence, and
    ConfigError for an unknown stage.
    """
    if stage not in _STAGE_KEYS:
        raise ConfigError(f"stage must be one of {', '.join(get_args(Stage))}, got {stage!r}")
    if not isinstance(batch, Mapping):
        raise BatchError(f"a batch is a mapping from field name to tensor, got {type(batch).__name__}")
    unknown = sorted(set(batch) - _KNOWN_KEYS - set(extra) - set(extra_content))
    if unknown:
        raise BatchError(
            f"no stage is known to read {', '.join(map(repr, unknown))}; "
            "name it in route(..., extra=[...]) if your model does, else remove it in the collate"
        )
    wanted = _STAGE_KEYS[stage].union(extra, extra_content if stage in ("first", "all") else ())
    return expand_pixels({name: value for name, value in batch.items() if name in wanted})


def with_pixels_on(batch: Mapping[str, Any], device: torch.device) -> Mapping[str, Any]:
    """The batch with pixels that are bytes, and their tables, moved to ``device``: they are expanded where they are."""
    names = [name for pixels, (table, _) in PIXELS.items() if table in batch for name in (pixels, table)]
    return {**batch, **to_device({name: batch[name] for name in names if name in batch}, device)} if names else batch
