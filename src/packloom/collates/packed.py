"""Rows go in, one flat batch [1, T] with its segment boundaries comes out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import accumulate
from types import MappingProxyType
from typing import cast

import torch
from torch import Tensor

from packloom.collates.alignment import fixed_or_rounded, joint_multiple
from packloom.collates.assemble import assemble, lengths_of
from packloom.collates.dummy_media import dummies_for
from packloom.collates.tensors import Slot, TokenField
from packloom.errors import BatchError
from packloom.types import Batch, LabelShift, Row


def collate_packed(
    rows: Sequence[Row],
    *,
    pad_id: int,
    label_shift: LabelShift,
    segment_multiple: int = 1,
    pad_to_multiple_of: int = 1,
    length: int | None = None,
    always_padded_boundaries: bool = False,
    token_fields: Sequence[TokenField] = (),
    media_joins: Mapping[str, str] = MappingProxyType({}),
    dummy: Row | None = None,
) -> Batch:
    """One row of segments: each sample, followed by a gap up to a multiple of ``segment_multiple``.

    T is ``length`` where given, else a multiple of ``pad_to_multiple_of``; the last segment's gap runs to T. Lengths 3
    and 5 with multiple 4: T = 12, cu_seqlens_q [0, 3, 8], cu_seqlens_q_padded [0, 4, 12], max_seqlen_q 8.

    ``cu_seqlens_q`` int32 [N + 1] are the logical boundaries (gaps taken out), ``cu_seqlens_q_padded`` the physical
    ones: there when any gap exists, or always with ``always_padded_boundaries`` (context parallelism reads them).
    ``max_seqlen_q`` is the longest physical segment. Query and key fields are the same.

    ``dummy`` becomes a last segment where no row has media (see ``dummy_media``).

    Raises BatchError for no rows, rows that are longer than ``length`` together, and rows or media that break the
    batch contract; ConfigError for settings that do not go together.
    """
    dummies = dummies_for(rows, dummy)
    rows = [*rows, *dummies]
    lengths, multiple = lengths_of(rows), joint_multiple(segment_multiple, pad_to_multiple_of)
    physical = [-(-size // segment_multiple) * segment_multiple for size in lengths]
    total = fixed_or_rounded(sum(physical), length, multiple)
    if sum(physical) > total:
        raise BatchError(
            f"{len(rows)} samples take {sum(physical)} tokens (each a multiple of {segment_multiple}), length is"
            f" {total}: {_listed(rows, physical)}"
        )
    physical[-1] += total - sum(physical)
    starts = [0, *accumulate(physical)]
    slots = [
        Slot(row=0, start=start, end=start + size, stop=start + room)
        for start, size, room in zip(starts, lengths, physical, strict=False)
    ]
    shared = assemble(
        rows,
        slots,
        shape=(1, total),
        segment_ids=range(1, len(rows) + 1),
        pad_id=pad_id,
        label_shift=label_shift,
        token_fields=token_fields,
        media_joins=media_joins,
        num_dummies=len(dummies),
    )
    has_gap = physical != lengths
    boundaries = _boundaries(lengths, physical, with_padded=has_gap or always_padded_boundaries)
    longest = {"max_seqlen_q": max(physical), "max_seqlen_kv": max(physical)}
    return cast(Batch, {**shared, "attention_mask": None, **boundaries, **longest, "layout": "packed"})


def _boundaries(lengths: list[int], physical: list[int], *, with_padded: bool) -> dict[str, Tensor]:
    logical = torch.tensor([0, *accumulate(lengths)], dtype=torch.int32)
    boundaries = {"cu_seqlens_q": logical, "cu_seqlens_kv": logical}
    if with_padded:
        padded = torch.tensor([0, *accumulate(physical)], dtype=torch.int32)
        boundaries |= {"cu_seqlens_q_padded": padded, "cu_seqlens_kv_padded": padded}
    return boundaries


def _listed(rows: Sequence[Row], sizes: Sequence[int]) -> str:
    shown = [f"{row.sample.key!r} {size}" for row, size in zip(rows, sizes, strict=True)]
    return ", ".join(shown if len(shown) <= 8 else [*shown[:7], f"and {len(shown) - 7} more"])
