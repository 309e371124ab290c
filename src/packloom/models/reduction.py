"""Loss sums and counts of one rank go in; those of all ranks, and the scale of a backward pass, come out.

``group`` is always that of data × context parallelism: its ranks hold different tokens. Tensor- and pipeline-parallel
peers hold the same ones and stay out.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor


def reduce_report(reports: Sequence[Mapping[str, Tensor]], group: Any | None = None) -> dict[str, float]:
    """The mean of each named loss over all micro batches and ranks, by one all-reduce; 0 where nothing was counted.

    ``reports`` are the third values of the loss functions of a step: name → [sum, number]. Every rank of the group must
    call it, with the same names. Without an initialised process group it is the mean over ``reports`` alone.
    """
    names = sorted({name for report in reports for name in report})
    if not names:
        return {}
    # float64 keeps counts exact, but not every backend reduces it: sums of a step stay far below float32's 2**24 steps
    totals = torch.stack([_total(reports, name) for name in names])
    if dist.is_available() and dist.is_initialized():
        dist.all_reduce(totals, group=group)
    return {
        name: float(total / number) if number > 0 else 0.0 for name, (total, number) in zip(names, totals, strict=True)
    }


def reduce_count(number: int, group: Any | None = None, *, device: torch.device | str = "cpu") -> int:
    """The sum of a count, e.g. of supervised tokens of all micro batches of a step, over the ranks of the group."""
    if not (dist.is_available() and dist.is_initialized()):
        return number
    total = torch.tensor(number, dtype=torch.int64, device=device)
    dist.all_reduce(total, group=group)
    return int(total)


def backward_scale(total: int, group: Any | None = None) -> float:
    """What to multiply a micro batch's loss sum with before backward, given ``total`` from ``reduce_count``.

    DDP and FSDP average gradients over the ranks, so the ranks' number is multiplied in; the gradients then are those
    of the mean loss over all tokens of the step. Without a supervised token anywhere it is 0: gradients become 0, not
    NaN, and every rank still communicates.
    """
    ranks = dist.get_world_size(group) if dist.is_available() and dist.is_initialized() else 1
    return ranks / total if total else 0.0


def _total(reports: Sequence[Mapping[str, Tensor]], name: str) -> Tensor:
    return torch.stack([report[name].float() for report in reports if name in report]).sum(dim=0)
