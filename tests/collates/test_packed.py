"""Packed batches, written out by hand."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from packloom.collates import collate_packed
from packloom.errors import BatchError, ConfigError
from packloom.types import Row

MakeRow = Callable[..., Row]


def test_every_key_of_two_segments_without_a_gap(make_row: MakeRow) -> None:
    rows = [make_row([11, 12, 13], [1, 2], key="a"), make_row([21, 22], [0], key="b")]
    batch = collate_packed(rows, pad_id=9, label_shift="next_token")
    assert {name: value.tolist() if isinstance(value, torch.Tensor) else value for name, value in batch.items()} == {
        "input_ids": [[11, 12, 13, 21, 22]],
        "labels": [[12, 13, -100, -100, -100]],
        "loss_mask": [[1.0, 1.0, 0.0, 0.0, 0.0]],
        "attention_mask": None,
        "padding_mask": [[False] * 5],
        "position_ids": [[0, 1, 2, 0, 1]],
        "pack_segment_ids": [[1, 1, 1, 2, 2]],
        "cu_seqlens_q": [0, 3, 5],
        "cu_seqlens_kv": [0, 3, 5],
        "max_seqlen_q": 3,
        "max_seqlen_kv": 3,
        "source_sample_num": 2,
        "num_input_tokens": 5,
        "num_loss_tokens": 2,
        "sample_keys": ["a", "b"],
        "label_shift": "next_token",
        "layout": "packed",
    }


def test_labels_in_place_without_a_shift(make_row: MakeRow) -> None:
    rows = [make_row([11, 12, 13], [1, 2]), make_row([21, 22], [0])]
    batch = collate_packed(rows, pad_id=9, label_shift="none")
    assert batch["labels"].tolist() == [[-100, 12, 13, 21, -100]]
    assert batch["loss_mask"].tolist() == [[0, 1, 1, 1, 0]]
    assert (batch["num_loss_tokens"], batch["label_shift"]) == (3, "none")


def test_gaps_after_each_segment(make_row: MakeRow) -> None:
    """Lengths 3 and 5, multiple 4: the gap is at 3 and at 9..11."""
    rows = [make_row([1, 2, 3]), make_row([4, 5, 6, 7, 8])]
    batch = collate_packed(rows, pad_id=0, label_shift="next_token", segment_multiple=4)
    assert batch["input_ids"].tolist() == [[1, 2, 3, 0, 4, 5, 6, 7, 8, 0, 0, 0]]
    assert batch["labels"].tolist() == [[2, 3, -100, -100, 5, 6, 7, 8, -100, -100, -100, -100]]
    assert batch["position_ids"].tolist() == [[0, 1, 2, 3, 0, 1, 2, 3, 4, 5, 6, 7]]
    assert batch["pack_segment_ids"].tolist() == [[1, 1, 1, 0, 2, 2, 2, 2, 2, 0, 0, 0]]
    assert batch["padding_mask"].nonzero()[:, 1].tolist() == [3, 9, 10, 11]
    assert batch["cu_seqlens_q"].tolist() == batch["cu_seqlens_kv"].tolist() == [0, 3, 8]
    assert batch["cu_seqlens_q_padded"].tolist() == batch["cu_seqlens_kv_padded"].tolist() == [0, 4, 12]
    assert batch["max_seqlen_q"] == batch["max_seqlen_kv"] == 8
    assert batch["num_input_tokens"] == 8


def test_fixed_length_extends_the_last_segment(make_row: MakeRow) -> None:
    rows = [make_row([1, 2, 3]), make_row([4, 5])]
    batch = collate_packed(rows, pad_id=0, label_shift="next_token", length=8)
    assert batch["input_ids"].tolist() == [[1, 2, 3, 4, 5, 0, 0, 0]]
    assert batch["position_ids"].tolist() == [[0, 1, 2, 0, 1, 2, 3, 4]]
    assert batch["cu_seqlens_q"].tolist() == [0, 3, 5]
    assert batch["cu_seqlens_q_padded"].tolist() == [0, 3, 8]
    assert batch["max_seqlen_q"] == 5


def test_total_multiple_is_paid_once_per_pack(make_row: MakeRow) -> None:
    rows = [make_row([1, 2, 3]), make_row([4, 5, 6])]
    batch = collate_packed(rows, pad_id=0, label_shift="none", segment_multiple=2, pad_to_multiple_of=16)
    assert batch["input_ids"].shape == (1, 16)
    assert batch["cu_seqlens_q_padded"].tolist() == [0, 4, 16]


def test_padded_boundaries_on_request_even_without_a_gap(make_row: MakeRow) -> None:
    rows = [make_row([1, 2]), make_row([3, 4])]
    batch = collate_packed(rows, pad_id=0, label_shift="none", segment_multiple=2, always_padded_boundaries=True)
    assert batch["cu_seqlens_q_padded"].tolist() == batch["cu_seqlens_kv_padded"].tolist() == [0, 2, 4]
    assert "cu_seqlens_q_padded" not in collate_packed(rows, pad_id=0, label_shift="none", segment_multiple=2)


def test_mrope_positions_run_on_from_the_highest_axis(make_row: MakeRow) -> None:
    image = make_row([1, 2, 3], positions=[[0, 1, 1], [0, 1, 4], [0, 2, 1]])
    text = make_row([4, 5], positions=[[0, 1]] * 3)
    batch = collate_packed([image, text], pad_id=0, label_shift="none", segment_multiple=4)
    assert batch["position_ids"].tolist() == [
        [[0, 1, 1, 5, 0, 1, 2, 3]],
        [[0, 1, 4, 5, 0, 1, 2, 3]],
        [[0, 2, 1, 5, 0, 1, 2, 3]],
    ]


def test_a_pack_of_one_token(make_row: MakeRow) -> None:
    batch = collate_packed([make_row([7])], pad_id=0, label_shift="next_token")
    assert batch["labels"].tolist() == [[-100]]
    assert (batch["cu_seqlens_q"].tolist(), batch["max_seqlen_q"], batch["num_loss_tokens"]) == ([0, 1], 1, 0)


def test_a_token_equal_to_the_pad_id_stays_a_token(make_row: MakeRow) -> None:
    batch = collate_packed([make_row([9, 9, 9])], pad_id=9, label_shift="none", segment_multiple=4)
    assert batch["labels"].tolist() == [[9, 9, 9, -100]]
    assert batch["padding_mask"].tolist() == [[False, False, False, True]]


def test_rows_are_not_changed(make_row: MakeRow) -> None:
    row = make_row([1, 2, 3], [1])
    collate_packed([row], pad_id=0, label_shift="next_token", length=8)["input_ids"].zero_()
    assert row.sample.input_ids.tolist() == [1, 2, 3]
    assert row.sample.loss_mask.tolist() == [False, True, False]


def test_rows_longer_than_the_fixed_length(make_row: MakeRow) -> None:
    rows = [make_row([1] * 5, key="x"), make_row([1] * 4, key="y")]
    with pytest.raises(BatchError, match=r"2 samples take 9 tokens .* length is 8: 'x' 5, 'y' 4"):
        collate_packed(rows, pad_id=0, label_shift="none", length=8)
    with pytest.raises(BatchError, match=r"take 16 tokens .* a multiple of 8"):
        collate_packed(rows, pad_id=0, label_shift="none", length=8, segment_multiple=8)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"length": 10, "segment_multiple": 4}, "multiple of 4 .* got 10"),
        ({"length": 0}, "length must be .* got 0"),
        ({"segment_multiple": 0}, "at least 1, got 0"),
        ({"pad_to_multiple_of": -2}, "at least 1, got -2"),
        ({"pad_id": -1}, "pad_id must be a token id, got -1"),
        ({"label_shift": "left"}, "label_shift must be one of .* got 'left'"),
    ],
)
def test_settings_that_cannot_work(make_row: MakeRow, settings: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        collate_packed([make_row([1, 2])], **{"pad_id": 0, "label_shift": "none", **settings})
