"""A batch and a pipeline stage go in; the inputs of a Megatron Core model's forward come out.

Megatron Core is optional: it is imported where ``PackedSeqParams`` are built, and nowhere else in this module.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from packloom.errors import BatchError, CapabilityError
from packloom.models.device import to_device
from packloom.models.loss import next_token_targets, sample_weights
from packloom.models.routing import LOSS_KEYS, PACKED_KEYS, TOKEN_TYPE_KEYS, Stage, route, with_pixels_on
from packloom.models.segments import is_packed, physical_boundaries
from packloom.models.visual import VisualInputs
from packloom.types import IGNORE_INDEX

_NAMED = ("input_ids", "position_ids", "attention_mask", "padding_mask")


@dataclass(frozen=True, kw_only=True)
class StageInputs:
    """What one pipeline stage of a Megatron Core model reads. Sequences are whole: such models slice them inside."""

    input_ids: Tensor  # [B, S] or [1, T] int64
    position_ids: Tensor  # [B, S], [3, B, S] or [1, T], [3, 1, T] int64
    padding_mask: Tensor | None = None  # [B, S] or [1, T] bool, True = padding
    packed_seq_params: Any | None = None  # megatron.core.packed_seq_params.PackedSeqParams; None if padded
    tokens: Mapping[str, Tensor] = field(default_factory=dict)  # further per-token tensors, e.g. mm_token_type_ids
    visual: VisualInputs = field(default_factory=VisualInputs)
    labels: Tensor | None = None  # [B, S] or [1, T] int64, the next token; last stage only
    loss_mask: Tensor | None = None  # [B, S] or [1, T] float32, aligned with labels; last stage only

    def arguments(self) -> dict[str, Any]:
        """The keyword arguments of the model's forward."""
        return {
            "input_ids": self.input_ids,
            "position_ids": self.position_ids,
            # Causal attention over right padding needs none, and Megatron's own masks have the other polarity.
            "attention_mask": None,
            "padding_mask": self.padding_mask,
            "packed_seq_params": self.packed_seq_params,
            "labels": self.labels,
            "loss_mask": self.loss_mask,
            **self.tokens,
            **self.visual.arguments(),
        }


def stage_inputs(
    batch: Mapping[str, Any],
    stage: Stage,
    *,
    device: torch.device | str | None = None,
    cp_size: int = 1,
    cp_group: Any | None = None,
    per_sample: bool = False,
    extra: Collection[str] = (),
    extra_content: Collection[str] = (),
) -> StageInputs:
    """The typed inputs of ``stage``, on ``device``; ``extra`` and ``extra_content`` are as for ``route``.

    ``per_sample`` puts the weights of ``sample_weights`` into the loss mask. Raises BatchError for a batch that breaks
    the batch contract or has padding that is not on the right, and CapabilityError for a packed batch without Megatron
    Core.
    """
    if device is not None:
        batch = with_pixels_on(batch, torch.device(device))
    fields = route(batch, stage, extra=extra, extra_content=extra_content)
    for name in ("input_ids", "position_ids"):
        if fields.get(name) is None:
            raise BatchError(f"the batch has no {name}; it has {', '.join(sorted(batch))}")
    params = packed_seq_params(batch, cp_size=cp_size, cp_group=cp_group, device=device) if is_packed(batch) else None
    if params is None:
        _check_right_padding(fields.get("attention_mask"))
    geometry = [name for name in extra if name not in (*_NAMED, *PACKED_KEYS, *LOSS_KEYS, *TOKEN_TYPE_KEYS)]
    content = extra_content if stage in ("first", "all") else ()
    tensors = {name: fields.get(name) for name in ("input_ids", "position_ids", "padding_mask")}
    tensors |= _targets(batch, per_sample=per_sample) if stage in ("last", "all") else {}
    tokens = {name: fields[name] for name in TOKEN_TYPE_KEYS if fields.get(name) is not None}
    visual = VisualInputs.of(fields, extra_content=content, extra_geometry=geometry)
    return StageInputs(
        **(tensors if device is None else to_device(tensors, device)),
        tokens=tokens if device is None else to_device(tokens, device),
        visual=visual if device is None else visual.to(device),
        packed_seq_params=params,
    )


def packed_seq_params(
    batch: Mapping[str, Any],
    *,
    cp_size: int = 1,
    cp_group: Any | None = None,
    device: torch.device | str | None = None,
    kind: type[Any] | None = None,
) -> Any:
    """Megatron Core's ``PackedSeqParams`` (≥ 0.16) of a packed batch, boundaries int32 on ``device``.

    Physical boundaries are given where a gap exists or context parallelism reads them; ``pad_between_seqs`` is whether
    a gap exists, told from the boundaries and not guessed. A version without that field guesses, and misses a gap that
    exists only behind the last segment: there a gap counts as part of its segment, which is the same for causal
    attention, since a gap lies behind the tokens of its segment. ``total_tokens`` is T, where the version has it.

    ``kind`` replaces the class. Raises CapabilityError without Megatron Core, BatchError for wrong boundaries
    and for segments that are no multiple of 2·cp.
    """
    kind = kind or _packed_seq_params_class()
    known = {item.name for item in dataclasses.fields(kind)}
    physical = physical_boundaries(batch)
    logical = batch["cu_seqlens_q"].to(torch.int32)
    has_gap = not torch.equal(logical, physical)
    if "pad_between_seqs" not in known:
        logical = physical
    if cp_size > 1 and bool((physical.diff() % (2 * cp_size) != 0).any()):
        raise BatchError(
            f"segments of {physical.diff().tolist()} tokens cannot each be cut into 2 chunks for {cp_size}"
            f" context-parallel ranks: build the loader with cp_size={cp_size}"
        )
    longest = int(physical.diff().max())
    if device is not None:
        logical, physical = (tensor.to(device) for tensor in (logical, physical))
    values: dict[str, Any] = dict.fromkeys(("cu_seqlens_q", "cu_seqlens_kv"), logical)
    if has_gap or cp_size > 1:
        values |= dict.fromkeys(("cu_seqlens_q_padded", "cu_seqlens_kv_padded"), physical)
    values |= dict.fromkeys(("max_seqlen_q", "max_seqlen_kv"), longest)
    newer = {"pad_between_seqs": has_gap, "total_tokens": batch["input_ids"].shape[1]}
    if cp_group is not None:
        newer["cp_group"] = cp_group
    return kind(qkv_format="thd", **values, **{name: value for name, value in newer.items() if name in known})


def _packed_seq_params_class() -> type[Any]:
    try:
        from megatron.core.packed_seq_params import PackedSeqParams  # noqa: PLC0415  # an optional dependency
    except ImportError as error:
        raise CapabilityError(
            "a packed batch for a Megatron model needs Megatron Core: pip install 'packloom[megatron]'"
        ) from error
    return PackedSeqParams  # type: ignore[no-any-return]


def _check_right_padding(attention_mask: Tensor | None) -> None:
    if attention_mask is not None and bool((attention_mask.diff(dim=-1) > 0).any()):
        raise BatchError("a Megatron step leaves the attention mask out, so padding must be on the right of each row")


def _targets(batch: Mapping[str, Any], *, per_sample: bool) -> dict[str, Tensor]:
    labels = next_token_targets(batch)
    mask = sample_weights(batch, labels) if per_sample else (labels != IGNORE_INDEX).to(torch.float32)
    return {"labels": labels, "loss_mask": mask}


#: Fields that a batch always has and not every Megatron model names. Media are not among them.
OPTIONAL_ARGUMENTS = frozenset(("padding_mask", "loss_mask", *TOKEN_TYPE_KEYS))
