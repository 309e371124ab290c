"""A batch goes in; the keyword arguments of a plain Hugging Face model's forward come out.

How transformers keeps packed segments apart (read in transformers 5.24, masking_utils and modeling_*_vl): without an
attention mask and without a cache it starts a new segment wherever the *text* positions do not rise by one. Families
with mRoPE take those text positions as row 0 of a four-row ``position_ids``; given three rows they have none, and
every segment attends to all segments before it.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

import torch
from torch import Tensor

from packloom.errors import BatchError, ConfigError
from packloom.models.loss import next_token_targets
from packloom.models.masks import additive_mask, block_causal_mask, flex_block_mask
from packloom.models.routing import LOSS_KEYS, PACKED_KEYS, route
from packloom.models.segments import is_packed, physical_boundaries, text_positions

MROPE_AXES = 3

# Fields that are turned into arguments below, or that Hugging Face models have no argument for.
_NOT_ARGUMENTS = frozenset((*PACKED_KEYS, *LOSS_KEYS, "padding_mask"))


def hf_model_inputs(
    batch: Mapping[str, Any],
    *,
    attn: str = "sdpa",
    labels: bool = False,
    explicit_mask: bool = False,
    extra: Collection[str] = (),
) -> dict[str, Any]:
    """The arguments of ``model(**arguments)`` for a plain Hugging Face model.

    ``position_ids`` become [4, 1, T] (packed mRoPE), [1, T] (packed), [3, B, S] (padded mRoPE) or [B, S]; they are
    always given, so the model never computes them. A packed batch has ``attention_mask=None``: its segments are kept
    apart by the positions, under eager, sdpa and flash attention alike. ``use_cache`` is False because a cache turns
    that off.

    ``attn`` containing ``"flash"`` adds ``cu_seq_lens_q/k`` and ``max_length_q/k``, which spare flash attention its
    own search for the boundaries in each layer; ``"flex_attention"`` gives a packed batch a BlockMask, on the device
    where its tensors are. ``explicit_mask=True`` gives it a block-causal mask [1, 1, T, T] under sdpa (bool) and eager
    (additive) attention too, for a model that does not look for boundaries in positions. ``labels=True`` adds
    ``labels`` and ``shift_labels``, for a model (or Trainer) that computes its own loss: both hold the next-token
    targets, so no target crosses a boundary.
    ``extra`` names keys of your own that the model takes as they are.

    Cheapest on a batch that is still on the CPU. Raises BatchError for a batch that breaks the batch contract.
    """
    fields = route(batch, "all", extra=extra)
    for name in ("input_ids", "position_ids") if is_packed(batch) else ("input_ids", "position_ids", "attention_mask"):
        if fields.get(name) is None:
            raise BatchError(f"the batch has no {name}; it has {', '.join(sorted(batch))}")
    arguments = {name: value for name, value in fields.items() if name not in _NOT_ARGUMENTS}
    _check_positions(fields["input_ids"], fields["position_ids"])
    if is_packed(batch):
        arguments |= _packed_arguments(fields, flash="flash" in attn)
        arguments["attention_mask"] = _packed_mask(fields, attn, explicit=explicit_mask)
    if labels:
        arguments["labels"] = arguments["shift_labels"] = next_token_targets(batch)
    return arguments | {"use_cache": False}


def _check_positions(ids: Tensor, positions: Tensor) -> None:
    shape = list(ids.shape)
    if list(positions.shape) not in (shape, [MROPE_AXES, *shape]):
        raise BatchError(
            f"position_ids must be {shape} like input_ids, or {[MROPE_AXES, *shape]} for mRoPE, "
            f"got {list(positions.shape)}"
        )
    if positions.dtype != torch.int64:
        raise BatchError(f"position_ids must be int64, got {positions.dtype}: other types lose high positions")


def _packed_arguments(fields: Mapping[str, Any], *, flash: bool) -> dict[str, Any]:
    if fields.get("attention_mask") is not None:
        raise BatchError("a packed batch keeps its segments apart by positions: attention_mask must be None")
    boundaries, positions = physical_boundaries(fields), fields["position_ids"]
    text = text_positions(boundaries)
    arguments: dict[str, Any] = {}
    if positions.ndim == text.ndim:
        _check_restart(fields, boundaries, text)
        arguments["position_ids"] = text
    else:
        arguments["position_ids"] = torch.cat([text[None], positions])
    if flash:
        longest = int(boundaries.diff().max())
        arguments |= dict.fromkeys(("cu_seq_lens_q", "cu_seq_lens_k"), boundaries)
        arguments |= dict.fromkeys(("max_length_q", "max_length_k"), longest)
    return arguments


def _packed_mask(fields: Mapping[str, Any], attn: str, *, explicit: bool) -> Any:
    if attn == "flex_attention":
        return flex_block_mask(fields)
    if not explicit:
        return None
    if "flash" in attn:
        raise ConfigError(f"{attn} reads segment lengths, and takes no mask: leave explicit_mask out")
    mask = block_causal_mask(fields)
    return additive_mask(mask) if attn == "eager" else mask


def _check_restart(fields: Mapping[str, Any], boundaries: Tensor, text: Tensor) -> None:
    """One-axis positions are the text positions; only in gaps may a collate have written something else."""
    lengths = fields["cu_seqlens_q"].diff()
    real = text < lengths.repeat_interleave(boundaries.diff())
    if not torch.equal(fields["position_ids"][real], text[real]):
        raise BatchError("position_ids of a packed batch must be 0, 1, 2, ... anew in every segment")
