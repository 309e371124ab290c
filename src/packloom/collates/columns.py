"""Rows go in, proved to be what the batch contract wants; their per-token tensors come out, one column per field."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from packloom.collates.labels import make_labels
from packloom.collates.media import MEDIA_FIELDS
from packloom.collates.tensors import CORE_FIELDS, EXTRA_FIELDS, TokenField
from packloom.errors import BatchError, ConfigError
from packloom.types import Batch, EncodedSample, LabelShift, Row

#: Position axes that a sample may have: plain, or the three of mRoPE.
POSITION_AXES = (1, 3)
#: What a batch holds beside the tensors that samples bring.
RESERVED_KEYS = Batch.__annotations__.keys() - {field.name for field in (*EXTRA_FIELDS, *MEDIA_FIELDS)}


def token_columns(
    rows: Sequence[Row], *, label_shift: LabelShift, segment_ids: Sequence[int], token_fields: Sequence[TokenField]
) -> list[tuple[TokenField, list[Tensor]]]:
    """Every per-token tensor of the batch, as a list with one piece [L] (positions of mRoPE: [3, L]) per row.

    Raises BatchError for a row that breaks the contract of EncodedSample, for rows whose positions differ in axes,
    and for a token tensor that is in no table.
    """
    extras = _extra_table(token_fields)
    for row in rows:
        _check_sample(row.sample)
    _check_axes(rows)
    pieces = [_core_pieces(row.sample, label_shift, number) for row, number in zip(rows, segment_ids, strict=True)]
    columns = [(field, [piece[field.name] for piece in pieces]) for field in CORE_FIELDS]
    names = dict.fromkeys(name for row in rows for name in row.sample.token_tensors)
    return columns + [_extra_column(name, rows, extras) for name in names]


def _core_pieces(sample: EncodedSample, label_shift: LabelShift, number: int) -> dict[str, Tensor]:
    labels, loss_mask = make_labels(sample.input_ids, sample.loss_mask, label_shift)
    positions = sample.position_ids
    return {
        "input_ids": sample.input_ids,
        "labels": labels,
        "loss_mask": loss_mask,
        "position_ids": positions[0] if positions.shape[0] == 1 else positions,
        "pack_segment_ids": torch.full((sample.num_tokens,), number),
        "padding_mask": torch.zeros(sample.num_tokens, dtype=torch.bool),
    }


def _extra_column(name: str, rows: Sequence[Row], extras: dict[str, TokenField]) -> tuple[TokenField, list[Tensor]]:
    field = extras.get(name)
    if field is None:
        key = next(row.sample.key for row in rows if name in row.sample.token_tensors)
        raise BatchError(
            f"sample {key!r} has a token tensor {name!r}, which is in no table (known: {', '.join(extras)}):"
            " give its TokenField to the collate, so that it is padded and sliced with the tokens"
        )
    return field, [_extra_piece(field, row) for row in rows]


def _extra_piece(field: TokenField, row: Row) -> Tensor:
    sample = row.sample
    piece = sample.token_tensors.get(field.name)
    if piece is None:
        if field.text_value is None or sample.media or row.media_tensors:
            raise BatchError(
                f"sample {sample.key!r} lacks the token tensor {field.name!r}, which other samples of its batch have:"
                " an encoder must give it to every sample"
            )
        return torch.full((sample.num_tokens,), field.text_value, dtype=field.dtype)
    _check_tensor(sample, field.name, piece, field.dtype, [sample.num_tokens])
    return piece


def _extra_table(token_fields: Sequence[TokenField]) -> dict[str, TokenField]:
    own = RESERVED_KEYS & {field.name for field in token_fields}
    if own:
        raise ConfigError(f"the collate makes {', '.join(sorted(own))} itself: register another name")
    return {field.name: field for field in (*EXTRA_FIELDS, *token_fields)}


def _check_sample(sample: EncodedSample) -> None:
    length = sample.num_tokens
    if not length:
        raise BatchError(f"sample {sample.key!r} has no tokens: drop it before the batch")
    _check_tensor(sample, "input_ids", sample.input_ids, torch.int64, [length])
    _check_tensor(sample, "loss_mask", sample.loss_mask, torch.bool, [length])
    axes = sample.position_ids.shape[0] if sample.position_ids.ndim == 2 else 1
    _check_tensor(sample, "position_ids", sample.position_ids, torch.int64, [axes, length])
    if axes not in POSITION_AXES:
        raise BatchError(f"sample {sample.key!r} has {axes} position axes, a sample has 1, or 3 for mRoPE")
    if sample.position_ids[:, 0].any():
        raise BatchError(
            f"sample {sample.key!r}: position_ids start at {sample.position_ids[:, 0].tolist()}, they must start at 0:"
            " positions are made per sample, and the batch does not count on across samples"
        )


def _check_axes(rows: Sequence[Row]) -> None:
    first, *others = (row.sample for row in rows)
    for other in others:
        if other.position_ids.shape[0] != first.position_ids.shape[0]:
            raise BatchError(
                f"sample {first.key!r} has {first.position_ids.shape[0]} position axes, sample {other.key!r} has"
                f" {other.position_ids.shape[0]}: all samples of a batch must come from one encoder"
            )


def _check_tensor(sample: EncodedSample, name: str, tensor: Tensor, dtype: torch.dtype, shape: list[int]) -> None:
    if tensor.dtype != dtype or list(tensor.shape) != shape:
        raise BatchError(
            f"sample {sample.key!r}: {name} must be {dtype} of shape {shape} (the sample has {sample.num_tokens}"
            f" tokens), got {tensor.dtype} of shape {list(tensor.shape)}"
        )
