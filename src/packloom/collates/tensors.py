"""The per-token table: one-sample tensors and their places go in, padded or packed tensors come out.

Each per-token tensor stands in the table once. Padding, packing and slicing loop over the table, so that no tensor is
ever left at another length than the rest.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from packloom.types import IGNORE_INDEX


@dataclass(frozen=True, kw_only=True)
class TokenField:
    """How one per-token tensor is padded and sliced; its tokens lie on the last axis, in samples and in batches.

    ``gap`` says what stands in padding: ``"value"`` is ``pad_value``, ``"continue"`` counts on by one per token, on
    all axes alike, from the sample's highest value + 1 (positions that stood still in padding would read as one
    sequence per pad token). ``cp_slice`` says whether context parallelism slices the tensor per segment or keeps it
    whole. ``text_value`` fills the tensor of a sample that lacks it and has no media; None refuses such a batch.
    """

    name: str
    pad_value: int | float | None  # None: the pad id of the tokenizer
    dtype: torch.dtype = torch.int64
    gap: Literal["value", "continue"] = "value"
    cp_slice: Literal["segment", "whole"] = "segment"
    text_value: int | float | None = None


#: What every batch has. Models take the whole ``input_ids`` under context parallelism and slice them inside.
CORE_FIELDS = (
    TokenField(name="input_ids", pad_value=None, cp_slice="whole"),
    TokenField(name="labels", pad_value=IGNORE_INDEX),
    TokenField(name="loss_mask", pad_value=0.0, dtype=torch.float32),
    TokenField(name="position_ids", pad_value=0, gap="continue"),
    TokenField(name="pack_segment_ids", pad_value=0),
    TokenField(name="padding_mask", pad_value=True, dtype=torch.bool),
)

#: What samples may bring in ``token_tensors``; a family adds its own through the collate's ``token_fields``.
EXTRA_FIELDS = (
    TokenField(name="mm_token_type_ids", pad_value=0, text_value=0),
    TokenField(name="token_type_ids", pad_value=0, text_value=0),
)


@dataclass(frozen=True, kw_only=True, slots=True)
class Slot:
    """The place of one sample: ``row``, and in it tokens at ``start:end`` and padding at ``end:stop``."""

    row: int
    start: int
    end: int
    stop: int


def lay_out(
    field: TokenField, pieces: Sequence[Tensor], slots: Sequence[Slot], *, shape: tuple[int, int], pad_id: int
) -> Tensor:
    """One batch tensor [..., *shape]: each piece [..., L] in its slot, padding as the field says.

    Each piece is written once into its final place; nothing is padded first and cut again.
    """
    value = pad_id if field.pad_value is None else field.pad_value
    out = torch.full((*pieces[0].shape[:-1], *shape), value, dtype=field.dtype)
    for piece, slot in zip(pieces, slots, strict=True):
        out[..., slot.row, slot.start : slot.end] = piece
        if field.gap == "continue" and slot.stop > slot.end:
            first = int(piece.max()) + 1
            out[..., slot.row, slot.end : slot.stop] = torch.arange(first, first + slot.stop - slot.end)
    return out
