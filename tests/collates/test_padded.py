"""Padded batches, written out by hand."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from packloom.collates import collate_padded
from packloom.errors import BatchError, ConfigError
from packloom.types import Row

MakeRow = Callable[..., Row]


def test_every_key_of_two_rows(make_row: MakeRow) -> None:
    rows = [make_row([11, 12, 13], [1, 2], key="a"), make_row([21, 22], [0, 1], key="b")]
    batch = collate_padded(rows, pad_id=9, label_shift="next_token")
    assert {name: value.tolist() if isinstance(value, torch.Tensor) else value for name, value in batch.items()} == {
        "input_ids": [[11, 12, 13], [21, 22, 9]],
        "labels": [[12, 13, -100], [22, -100, -100]],
        "loss_mask": [[1.0, 1.0, 0.0], [1.0, 0.0, 0.0]],
        "attention_mask": [[1, 1, 1], [1, 1, 0]],
        "padding_mask": [[False, False, False], [False, False, True]],
        "position_ids": [[0, 1, 2], [0, 1, 2]],
        "pack_segment_ids": [[1, 1, 1], [1, 1, 0]],
        "source_sample_num": 2,
        "num_input_tokens": 5,
        "num_loss_tokens": 3,
        "sample_keys": ["a", "b"],
        "label_shift": "next_token",
        "layout": "padded",
    }


def test_labels_in_place_without_a_shift(make_row: MakeRow) -> None:
    rows = [make_row([11, 12, 13], [1, 2]), make_row([21, 22], [0, 1])]
    batch = collate_padded(rows, pad_id=9, label_shift="none")
    assert batch["labels"].tolist() == [[-100, 12, 13], [21, 22, -100]]
    assert batch["loss_mask"].tolist() == [[0, 1, 1], [1, 1, 0]]
    assert batch["num_loss_tokens"] == 4


def test_mrope_positions(make_row: MakeRow) -> None:
    rows = [make_row([1, 2], positions=[[0, 1], [0, 4], [0, 2]]), make_row([4, 5, 6, 7], positions=[[0, 1, 2, 3]] * 3)]
    batch = collate_padded(rows, pad_id=0, label_shift="none")
    assert batch["position_ids"].tolist() == [
        [[0, 1, 5, 6], [0, 1, 2, 3]],
        [[0, 4, 5, 6], [0, 1, 2, 3]],
        [[0, 2, 5, 6], [0, 1, 2, 3]],
    ]


@pytest.mark.parametrize(
    ("settings", "width"),
    [
        ({}, 3),
        ({"pad_to_multiple_of": 8}, 8),
        ({"segment_multiple": 4}, 4),
        ({"segment_multiple": 4, "pad_to_multiple_of": 6}, 12),
        ({"length": 3}, 3),
        ({"length": 16, "pad_to_multiple_of": 8}, 16),
    ],
)
def test_width(make_row: MakeRow, settings: dict[str, int], width: int) -> None:
    row = make_row([1, 2, 3], token_tensors={"mm_token_type_ids": torch.tensor([0, 1, 2])})
    batch = collate_padded([row, row], pad_id=0, label_shift="none", **settings)
    names = ("input_ids", "labels", "loss_mask", "attention_mask", "padding_mask", "position_ids", "pack_segment_ids")
    assert {batch[name].shape for name in (*names, "mm_token_type_ids")} == {(2, width)}
    assert batch["mm_token_type_ids"].tolist() == [[0, 1, 2] + [0] * (width - 3)] * 2


def test_a_token_equal_to_the_pad_id_stays_a_token(make_row: MakeRow) -> None:
    batch = collate_padded([make_row([9, 9, 9]), make_row([9])], pad_id=9, label_shift="none")
    assert batch["attention_mask"].tolist() == [[1, 1, 1], [1, 0, 0]]
    assert batch["labels"].tolist() == [[9, 9, 9], [9, -100, -100]]


def test_a_row_longer_than_the_fixed_length_is_named(make_row: MakeRow) -> None:
    with pytest.raises(BatchError, match="sample 'long' has 9 tokens, length is 8"):
        collate_padded([make_row([1]), make_row([1] * 9, key="long")], pad_id=0, label_shift="none", length=8)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"length": 9, "pad_to_multiple_of": 8}, "multiple of 8 .* got 9"),
        ({"pad_to_multiple_of": 0}, "at least 1, got 0"),
        ({"pad_id": -100}, "pad_id must be a token id, got -100"),
        ({"label_shift": ""}, "label_shift must be one of"),
    ],
)
def test_settings_that_cannot_work(make_row: MakeRow, settings: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        collate_padded([make_row([1, 2])], **{"pad_id": 0, "label_shift": "none", **settings})
