"""A batch goes in; the same batch with its tensors on one device comes out."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor


def to_device(batch: Mapping[str, Any], device: torch.device | str | int) -> dict[str, Any]:
    """A copy of ``batch`` with every tensor on ``device``; other values stay the objects they are.

    Copies to an accelerator do not block (they overlap with compute when the batch is in pinned memory). Copies to
    the CPU do: an unfinished one would show stale memory to whoever reads it.
    """
    target = torch.device(device)
    non_blocking = target.type != "cpu"
    return {
        name: value.to(target, non_blocking=non_blocking) if isinstance(value, Tensor) else value
        for name, value in batch.items()
    }
