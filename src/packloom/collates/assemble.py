"""Rows and the place of each go in; the part of a batch that both layouts share comes out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from packloom.collates.columns import RESERVED_KEYS, token_columns
from packloom.collates.media import join_media
from packloom.collates.tensors import Slot, TokenField, lay_out
from packloom.errors import BatchError, ConfigError
from packloom.types import IGNORE_INDEX, LabelShift, Row


def assemble(
    rows: Sequence[Row],
    slots: Sequence[Slot],
    *,
    shape: tuple[int, int],
    segment_ids: Sequence[int],
    pad_id: int,
    label_shift: LabelShift,
    token_fields: Sequence[TokenField],
    media_joins: Mapping[str, str],
    num_dummies: int = 0,
) -> dict[str, Any]:
    """Per-token tensors of ``shape`` ([B, S] or [1, T]), media tensors and counters.

    The last ``num_dummies`` rows count as padding, and in no counter. ``num_input_tokens`` counts real tokens;
    ``num_loss_tokens`` counts labels that are trained on, after the shift.
    """
    if pad_id < 0:
        raise ConfigError(f"pad_id must be a token id, got {pad_id}")
    columns = token_columns(rows, label_shift=label_shift, segment_ids=segment_ids, token_fields=token_fields)
    batch = {field.name: lay_out(field, pieces, slots, shape=shape, pad_id=pad_id) for field, pieces in columns}
    real = rows[: len(rows) - num_dummies]
    for slot in slots[len(real) :]:
        batch["padding_mask"][slot.row, slot.start : slot.end] = True
    media = join_media(rows, media_joins)
    doubled = sorted(media.keys() & (batch.keys() | RESERVED_KEYS))
    if doubled:
        raise BatchError(f"{', '.join(doubled)} cannot be a media key: a batch has something else under that name")
    counters = {
        "source_sample_num": len(real),
        "num_input_tokens": sum(row.sample.num_tokens for row in real),
        "num_loss_tokens": int((batch["labels"] != IGNORE_INDEX).sum()),
        "sample_keys": [row.sample.key for row in real],
        "label_shift": label_shift,
    }
    return {**batch, **media, **counters}


def lengths_of(rows: Sequence[Row]) -> list[int]:
    """Tokens per row; no rows is a BatchError."""
    if not rows:
        raise BatchError("a batch needs at least one row, got none")
    return [row.sample.num_tokens for row in rows]
