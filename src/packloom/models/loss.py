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


def sample_weights(batch: Mapping[str, Any], targets: Tensor) -> Tensor:
    """``[B, S]`` or ``[1, T]`` float32: 1/n at each of a sample's n targets, 0 elsewhere.

    With them each sample counts alike, however long its answers are; a sample without a target counts nothing. Raises
    BatchError without ``pack_segment_ids``, which say where samples lie.
    """
    if "pack_segment_ids" not in batch:
        raise BatchError("an average per sample needs pack_segment_ids, which say where the samples of a batch lie")
    segments: Tensor = batch["pack_segment_ids"]
    rows = torch.arange(segments.shape[0], device=segments.device)[:, None]
    number = rows * (int(segments.max()) + 1) + segments
    is_target = targets != IGNORE_INDEX
    counts = torch.bincount(number[is_target], minlength=int(number.max()) + 1)
    return torch.where(is_target, 1.0 / counts.clamp(min=1)[number], 0.0).to(torch.float32)


def lm_loss(
    logits: Tensor, *, targets: Tensor, weights: Tensor | None = None
) -> tuple[Tensor, Tensor, dict[str, Tensor]]:
    """``(sum of losses, number of target tokens, {"lm loss": [sum, number]})`` for logits [B, S, V], targets [B, S].

    This is what Megatron Core ≥ 0.16 expects of a loss function (read in its pipeline_parallel/schedules.py): three
    values, of which it divides the first by the second, or, with ``calculate_per_token_loss``, by the second summed
    over all micro batches and data-parallel ranks. The cross entropy is computed in float32. Without a target the
    loss is 0 and still has a graph, so backward runs, and communicates, on every rank.

    ``weights`` [B, S] from ``sample_weights`` make it the sum over samples of their mean losses, and the number that of
    samples.
    """
    if logits.shape[:-1] != targets.shape:
        raise BatchError(f"logits {list(logits.shape)} do not fit targets {list(targets.shape)}: want [B, S, V]")
    flat, wanted = logits.flatten(0, -2).float(), targets.flatten()
    if weights is None:
        loss = cross_entropy(flat, wanted, ignore_index=IGNORE_INDEX, reduction="sum")
        number = (targets != IGNORE_INDEX).sum()
    else:
        losses = cross_entropy(flat, wanted, ignore_index=IGNORE_INDEX, reduction="none")
        loss, number = (losses * weights.flatten()).sum(), weights.sum().round()
    return with_report(loss, number)


def token_loss(
    losses: Tensor, *, weights: Tensor, number: int | None = None
) -> tuple[Tensor, Tensor, dict[str, Tensor]]:
    """As ``lm_loss``, for a model that returns the loss of each token, [B, S], as those of Megatron Core do.

    ``weights`` [B, S] is the loss mask, or what ``sample_weights`` gives; what stands where it is 0 is never looked at
    (attention kernels may leave NaN in alignment gaps). ``number`` is what to divide by where the weights alone do not
    tell: samples, of which a context-parallel rank holds parts.
    """
    if losses.shape != weights.shape:
        raise BatchError(
            f"the model returned losses of shape {list(losses.shape)} for a loss mask of {list(weights.shape)}: a model"
            " that slices the sequence over context-parallel ranks must return (losses, sliced loss mask)"
        )
    counted = torch.where(weights > 0, losses.float(), 0.0)
    total = (weights > 0).sum() if number is None else torch.tensor(number, device=losses.device)
    return with_report((counted * weights).sum(), total)


def with_report(loss: Tensor, number: Tensor) -> tuple[Tensor, Tensor, dict[str, Tensor]]:
    """The three values of a loss function; the report's pair is what ``reduce_report`` adds up over ranks."""
    number = number.to(torch.int)
    return loss, number, {"lm loss": torch.stack([loss.detach(), number.to(loss.dtype)])}
