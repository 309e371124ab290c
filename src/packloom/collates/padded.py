"""Rows go in, one right-padded batch [B, S] comes out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import cast

import torch

from packloom.collates.alignment import fixed_or_rounded, joint_multiple
from packloom.collates.assemble import assemble, lengths_of
from packloom.collates.dummy_media import dummies_for
from packloom.collates.tensors import Slot, TokenField
from packloom.errors import BatchError
from packloom.types import Batch, LabelShift, Row


def collate_padded(
    rows: Sequence[Row],
    *,
    pad_id: int,
    label_shift: LabelShift,
    pad_to_multiple_of: int = 1,
    segment_multiple: int = 1,
    length: int | None = None,
    token_fields: Sequence[TokenField] = (),
    media_joins: Mapping[str, str] = MappingProxyType({}),
    dummy: Row | None = None,
) -> Batch:
    """One row per sample, padded on the right to S; ``attention_mask`` int64 [B, S] is 1 where a token is real.

    S is ``length`` where given, else the longest sample rounded up to a multiple of ``pad_to_multiple_of`` and of
    ``segment_multiple`` (each row is one segment, so ``pack_segment_ids`` is 1 on it). Padding is known by length,
    never by token value.

    ``dummy`` stands, where no row has media, in the padding of the shortest row as its segment 2 (see
    ``dummy_media``); S grows where it must.

    Raises BatchError for no rows, a row that is longer than ``length``, and rows or media that break the batch
    contract; ConfigError for settings that do not go together.
    """
    lengths = lengths_of(rows)
    dummies = dummies_for(rows, dummy)
    host = lengths.index(min(lengths))
    ends = [lengths[host] + item.sample.num_tokens for item in dummies]
    width = fixed_or_rounded(max(lengths + ends), length, joint_multiple(pad_to_multiple_of, segment_multiple))
    for row, size in zip(rows, lengths, strict=True):
        if size > width:
            raise BatchError(f"sample {row.sample.key!r} has {size} tokens, length is {width}: raise it or drop such")
    if any(end > width for end in ends):
        raise BatchError(
            f"the dummy medium takes {ends[0] - lengths[host]} tokens, and the shortest row leaves"
            f" {width - lengths[host]} of {width}: raise length, or lower the encoder's max_length by as much"
        )
    stops = [lengths[host] if dummies and row == host else width for row in range(len(rows))]
    slots = [Slot(row=row, start=0, end=size, stop=stops[row]) for row, size in enumerate(lengths)]
    slots += [Slot(row=host, start=lengths[host], end=end, stop=width) for end in ends]
    shared = assemble(
        [*rows, *dummies],
        slots,
        shape=(len(rows), width),
        segment_ids=[1] * len(rows) + [2] * len(dummies),
        pad_id=pad_id,
        label_shift=label_shift,
        token_fields=token_fields,
        media_joins=media_joins,
        num_dummies=len(dummies),
    )
    attention_mask = (~shared["padding_mask"]).to(torch.int64)
    return cast(Batch, {**shared, "attention_mask": attention_mask, "layout": "padded"})
