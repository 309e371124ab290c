"""The boundaries of a packed batch go in; explicit attention masks that keep its segments apart come out.

transformers finds the boundaries of a pack from text positions by itself, and flash attention reads them as lengths.
These masks are for models that do neither, and for flex attention, which then computes nothing outside the segments.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from packloom.models.segments import physical_boundaries

if TYPE_CHECKING:
    from torch.nn.attention.flex_attention import BlockMask


def block_causal_mask(batch: Mapping[str, Any]) -> Tensor:
    """``[1, 1, T, T]`` bool, True where query t may attend to key s: s is no later than t and in the same segment.

    A segment includes its alignment gap, which lies behind its tokens and so is seen by none of them, and no row is
    without a key. Raises BatchError for a batch that is not packed or whose boundaries do not fit.
    """
    number = _segment_numbers(batch)
    place = torch.arange(len(number), device=number.device)
    return ((number[:, None] == number[None]) & (place[:, None] >= place[None]))[None, None]


def additive_mask(mask: Tensor, dtype: torch.dtype = torch.float32) -> Tensor:
    """A bool mask as what eager attention adds to its scores: 0, or the lowest finite value of ``dtype``."""
    zeros = torch.zeros(mask.shape, dtype=dtype, device=mask.device)
    return zeros.masked_fill(~mask, torch.finfo(dtype).min)


def flex_block_mask(batch: Mapping[str, Any]) -> BlockMask:
    """The same rule as ``block_causal_mask`` for flex attention, on the batch's device: move the batch there first."""
    # imported late because it loads the compiler
    from torch.nn.attention.flex_attention import create_block_mask  # noqa: PLC0415

    number = _segment_numbers(batch)
    total = len(number)

    def same_segment(_batch: Tensor, _head: Tensor, query: Tensor, key: Tensor) -> Tensor:
        return (number[query] == number[key]) & (query >= key)

    return create_block_mask(same_segment, B=1, H=None, Q_LEN=total, KV_LEN=total, device=str(number.device))


def _segment_numbers(batch: Mapping[str, Any]) -> Tensor:
    boundaries = physical_boundaries(batch).to(batch["input_ids"].device)
    lengths = boundaries.diff().long()
    return torch.arange(len(lengths), device=lengths.device).repeat_interleave(lengths)
