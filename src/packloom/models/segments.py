"""The boundaries of a packed batch go in; checked boundaries and restarting text positions come out."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from packloom.errors import BatchError


def is_packed(batch: Mapping[str, Any]) -> bool:
    """True for one row of segments, which is told by its boundaries; False for padded rows."""
    return "cu_seqlens_q" in batch


def physical_boundaries(batch: Mapping[str, Any]) -> Tensor:
    """``[N + 1]`` int32: where each segment of a packed batch starts and ends, its alignment gap included.

    Raises BatchError unless they rise from 0 to T: an attention kernel leaves whatever lies outside undefined.
    """
    ids = batch["input_ids"]
    if ids.ndim != 2 or ids.shape[0] != 1:
        raise BatchError(f"a packed batch is one row: input_ids must be [1, T], got {list(ids.shape)}")
    logical: Tensor = batch["cu_seqlens_q"]
    physical: Tensor = batch.get("cu_seqlens_q_padded", logical)
    values = physical.tolist()
    if values[:1] != [0] or values[-1] != ids.shape[1] or bool((physical.diff() <= 0).any()):
        raise BatchError(f"segment boundaries must rise from 0 to T = {ids.shape[1]}, got {values}")
    if logical.shape != physical.shape or bool((logical.diff() > physical.diff()).any()):
        raise BatchError(f"cu_seqlens_q {logical.tolist()} does not fit into cu_seqlens_q_padded {values}")
    return physical.to(torch.int32)


def text_positions(boundaries: Tensor) -> Tensor:
    """``[1, T]`` int64: 0, 1, 2, ... anew in every segment, and on through its gap.

    No two positions with a boundary between them differ by +1, which is how transformers tells segments apart.
    """
    starts = boundaries[:-1].long().repeat_interleave(boundaries.diff().long())
    return (torch.arange(starts.shape[0], device=boundaries.device) - starts)[None]
