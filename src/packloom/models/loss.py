"""Labels and logits go in; next-token targets and a summed cross entropy with its token count come out."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from packloom.errors import BatchError
from packloom.models.segments import is_packed, physical_boundaries
from packloom.types import IGNORE_INDEX


def next_token_targets(batch: Mapping[str, Any]) -> Tensor:
    """``[B, S]`` or ``[1, T]`` int64: the target of the logits at each position, -100 where there is none.

    Labels with ``label_shift="next_token"`` are targets already; those with ``"none"`` are shifted here, each segment
    by itself, so that no target crosses a boundary. Raises BatchError if labels are missing, ``label_shift`` is
    neither, or ``loss_mask`` is anything but 1 at labels and 0 elsewhere.
    """
    for name in ("input_ids", "labels", "label_shift"):
        if name not in batch:
            raise BatchError(f"a loss needs {name}, which this batch lacks; it has {', '.join(sorted(batch))}")
    labels: Tensor = batch["labels"]
    if labels.shape != batch["input_ids"].shape:
        raise BatchError(
            f"labels must have the shape of input_ids, {list(batch['input_ids'].shape)}, got {list(labels.shape)}"
        )
    supervised = labels != IGNORE_INDEX
    if "loss_mask" in batch and not torch.equal(batch["loss_mask"], supervised.to(batch["loss_mask"].dtype)):
        raise BatchError(
            f"loss_mask must be 1 exactly where labels are not {IGNORE_INDEX} and 0 elsewhere; change labels to "
            "supervise other tokens (weights are not supported)"
        )
    shift = batch["label_shift"]
    if shift not in ("next_token", "none"):
        raise BatchError(f"label_shift must be 'next_token' or 'none', got {shift!r}")
    return labels if shift == "next_token" else _shift(batch, labels)


def _shift(batch: Mapping[str, Any], labels: Tensor) -> Tensor:
    targets = torch.full_like(labels, IGNORE_INDEX)
    targets[:, :-1] = labels[:, 1:]
    if is_packed(batch):
        last = physical_boundaries(batch)[1:].long() - 1
        targets[:, last] = IGNORE_INDEX
    elif batch.get("attention_mask") is not None:
        # Left padding: the pad before the first token predicts nothing.
        targets[batch["attention_mask"] == 0] = IGNORE_INDEX
    return targets


def lm_loss(logits: Tensor, *, targets: Tensor) -> tuple[Tensor, Tensor, dict[str, Tensor]]:
    """``(sum of losses, number of target tokens, {"lm loss": [sum, number]})`` for logits [B, S, V], targets [B, S].

    This is what Megatron Core ≥ 0.16 expects of a loss function (read in its pipeline_parallel/schedules.py): three
    values, of which it divides the first by the second, or, with ``calculate_per_token_loss``, by the second summed
    over all micro batches and data-parallel ranks. The cross entropy is computed in float32. Without a target the
    loss is 0 and still has a graph, so backward runs, and communicates, on every rank.
    """
    if logits.shape[:-1] != targets.shape:
        raise BatchError(f"logits {list(logits.shape)} do not fit targets {list(targets.shape)}: want [B, S, V]")
    loss = cross_entropy(logits.flatten(0, -2).float(), targets.flatten(), ignore_index=IGNORE_INDEX, reduction="sum")
    num_tokens = (targets != IGNORE_INDEX).sum().to(torch.int)
    return loss, num_tokens, {"lm loss": torch.stack([loss.detach(), num_tokens.to(loss.dtype)])}
