"""A batch and a context-parallel rank go in; that rank's slice of every per-token tensor comes out.

Causal attention makes late tokens dearer than early ones, so each segment is cut into 2·cp chunks and rank r takes the
chunks r and 2·cp-1-r: that is the zigzag of Megatron Core and Transformer Engine. A padded row is one segment.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence, Set
from typing import Any

import torch
from torch import Tensor

from packloom.collates.tensors import CORE_FIELDS, EXTRA_FIELDS, TokenField
from packloom.errors import BatchError, ConfigError

#: [B, S] or None; no collate's table has it, since it is made of the padding mask.
_ATTENTION_MASK = "attention_mask"


def zigzag_places(boundaries: Tensor, *, cp_rank: int, cp_size: int) -> Tensor:
    """The places [T / cp] int64, rising, that one rank holds of segments with these physical boundaries [N + 1].

    Boundaries [0, 4, 12] and two ranks: rank 0 holds 0, 3, 4, 5, 10, 11, rank 1 holds 1, 2, 6, 7, 8, 9. Raises
    BatchError for a segment whose length is no multiple of 2·cp, ConfigError for a rank that is not one of ``cp_size``.
    """
    if not 0 <= cp_rank < cp_size:
        raise ConfigError(f"cp_rank {cp_rank} is not in 0..{cp_size - 1}, the ranks of cp_size {cp_size}")
    bounds = boundaries.long()
    lengths = bounds.diff()
    if cp_size == 1:
        return torch.arange(int(bounds[-1]), device=bounds.device)
    uneven = lengths % (2 * cp_size) != 0
    if bool(uneven.any()):
        raise BatchError(
            f"segment {int(uneven.nonzero()[0])} has {int(lengths[uneven][0])} tokens, no multiple of 2·cp ="
            f" {2 * cp_size}: build the loader with cp_size={cp_size}, or collate with segment_multiple={2 * cp_size}"
        )
    segment = torch.arange(len(lengths), device=bounds.device).repeat_interleave(lengths)
    place = torch.arange(int(bounds[-1]), device=bounds.device)
    chunk = (place - bounds[segment]) * (2 * cp_size) // lengths[segment]
    return place[(chunk == cp_rank) | (chunk == 2 * cp_size - 1 - cp_rank)]


def slice_batch(
    batch: Mapping[str, Any],
    *,
    cp_rank: int,
    cp_size: int,
    whole: Collection[str] | None = None,
    token_fields: Sequence[TokenField] = (),
) -> dict[str, Any]:
    """The batch with each per-token tensor cut to what ``cp_rank`` holds; all other fields are as they are.

    Per segment over the physical boundaries where the batch is packed, over the whole row where it is padded. Which
    tensors stay whole the table of tensors says: ``input_ids``, which vision-language models must see whole to place
    their images. ``whole`` says it otherwise: ``()`` cuts all, ``("input_ids", "position_ids")`` suits models that
    build their rotary table from whole mRoPE positions and cut it per segment inside, as Megatron Core's do for packs.
    Boundaries stay those of the whole pack, which is what ``PackedSeqParams`` wants.

    Slice after labels are shifted: with ``label_shift="none"`` the token after a chunk is on another rank, so such a
    batch is refused. Raises BatchError for that, and for segments that are no multiple of 2·cp.
    """
    if cp_size > 1 and batch.get("label_shift") == "none":
        raise BatchError(
            "labels are not shifted yet (label_shift 'none'), and a rank lacks the token after each of its chunks:"
            " collate with label_shift='next_token'"
        )
    places = zigzag_places(_boundaries(batch), cp_rank=cp_rank, cp_size=cp_size)
    sliced = _sliced_names(whole, token_fields)
    _check_whole(batch, sliced)
    return {
        name: value.index_select(-1, places.to(value.device)) if name in sliced and value is not None else value
        for name, value in batch.items()
    }


def _check_whole(batch: Mapping[str, Any], names: Set[str]) -> None:
    total = batch["input_ids"].shape[-1]
    for name in names & batch.keys():
        if batch[name] is not None and batch[name].shape[-1] != total:
            raise BatchError(
                f"{name} has {batch[name].shape[-1]} tokens, input_ids {total}: slice a whole batch, and only once"
            )


def join_slices(slices: Sequence[Mapping[str, Any]], boundaries: Tensor, names: Collection[str]) -> dict[str, Tensor]:
    """The whole per-token tensors ``names`` again, from the slices of all ranks in their order."""
    places = [zigzag_places(boundaries, cp_rank=rank, cp_size=len(slices)) for rank in range(len(slices))]
    order = torch.cat(places).argsort()
    return {name: torch.cat([part[name] for part in slices], dim=-1).index_select(-1, order) for name in names}


def _sliced_names(whole: Collection[str] | None, token_fields: Sequence[TokenField]) -> set[str]:
    fields = {field.name: field for field in (*CORE_FIELDS, *EXTRA_FIELDS, *token_fields)}
    if whole is None:
        return {_ATTENTION_MASK, *(name for name, field in fields.items() if field.cp_slice == "segment")}
    unknown = sorted(set(whole) - set(fields))
    if unknown:
        raise ConfigError(
            f"whole names {', '.join(unknown)}, which are no per-token tensors; known: {', '.join(fields)}"
        )
    return {_ATTENTION_MASK, *fields} - set(whole)


def _boundaries(batch: Mapping[str, Any]) -> Tensor:
    if "cu_seqlens_q" not in batch:
        return torch.tensor([0, batch["input_ids"].shape[-1]])
    boundaries: Tensor = batch.get("cu_seqlens_q_padded", batch["cu_seqlens_q"])
    if int(boundaries[-1]) != batch["input_ids"].shape[-1]:
        raise BatchError(
            f"segment boundaries end at {int(boundaries[-1])}, the batch has {batch['input_ids'].shape[-1]} tokens:"
            " slice a whole batch, once"
        )
    return boundaries
