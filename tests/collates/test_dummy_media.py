"""A batch without media gets one dummy: where it stands, what counts it, and that nothing else moves."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from packloom.collates import collate_packed, collate_padded, make_dummy
from packloom.collates.dummy_media import check_dummy_media
from packloom.errors import BatchError, ConfigError

SETTINGS = {"pad_id": 0, "label_shift": "next_token"}
START, IMAGE, END = 90, 91, 92
MEDIA_IDS = torch.tensor([START, IMAGE, END])


@pytest.fixture
def dummy(make_row):
    """Cut out of a row of text, image and text."""
    row = make_row(
        [7, 8, START, IMAGE, END, 9],
        [5],
        positions=[[0, 1, 2, 3, 4, 5]] * 3,
        token_tensors={"mm_token_type_ids": torch.tensor([0, 0, 0, 1, 0, 0])},
        media={"pixel_values": torch.ones(4, 2), "image_grid_thw": torch.tensor([[1, 2, 2]])},
    )
    return make_dummy(row, MEDIA_IDS)


@pytest.fixture
def text(make_row):
    def build(*ids):
        positions = [list(range(len(ids)))] * 3
        types = {"mm_token_type_ids": torch.zeros(len(ids), dtype=torch.int64)}
        return make_row(list(ids), key=f"t{ids[0]}", positions=positions, token_tensors=types)

    return build


def test_a_dummy_is_the_medium_alone(dummy, text):
    assert dummy.sample.key == ""
    assert dummy.sample.input_ids.tolist() == [START, IMAGE, END]
    assert dummy.sample.position_ids.tolist() == [[0, 1, 2]] * 3
    assert dummy.sample.token_tensors["mm_token_type_ids"].tolist() == [0, 1, 0]
    assert not dummy.sample.loss_mask.any()
    with pytest.raises(BatchError, match="sample 't5' has no medium"):
        make_dummy(text(5, 6), MEDIA_IDS)


def test_in_a_pack_it_is_the_last_segment(dummy, text):
    batch = collate_packed([text(1, 2, 3), text(4, 5)], segment_multiple=4, dummy=dummy, **SETTINGS)
    assert batch["input_ids"].tolist() == [[1, 2, 3, 0, 4, 5, 0, 0, START, IMAGE, END, 0]]
    assert batch["cu_seqlens_q"].tolist() == [0, 3, 5, 8]
    assert batch["cu_seqlens_q_padded"].tolist() == [0, 4, 8, 12]
    assert batch["pack_segment_ids"].tolist() == [[1, 1, 1, 0, 2, 2, 0, 0, 3, 3, 3, 0]]
    assert batch["padding_mask"].int().tolist() == [[0, 0, 0, 1, 0, 0, 1, 1, 1, 1, 1, 1]]
    assert batch["labels"].tolist() == [[2, 3, -100, -100, 5, *[-100] * 7]]
    assert batch["position_ids"][0].tolist() == [[0, 1, 2, 3, 0, 1, 2, 3, 0, 1, 2, 3]]
    assert batch["image_grid_thw"].tolist() == [[1, 2, 2]]
    counters = ("source_sample_num", "num_input_tokens", "num_loss_tokens", "sample_keys")
    assert [batch[name] for name in counters] == [2, 5, 3, ["t1", "t4"]]


def test_in_padded_rows_it_stands_in_the_padding_of_the_shortest(dummy, text):
    batch = collate_padded([text(1, 2, 3, 4, 5, 6), text(7, 8)], dummy=dummy, **SETTINGS)
    assert batch["input_ids"].tolist() == [[1, 2, 3, 4, 5, 6], [7, 8, START, IMAGE, END, 0]]
    assert batch["attention_mask"].tolist() == [[1] * 6, [1, 1, 0, 0, 0, 0]]
    assert batch["pack_segment_ids"].tolist() == [[1] * 6, [1, 1, 2, 2, 2, 0]]
    assert batch["position_ids"][0].tolist() == [[0, 1, 2, 3, 4, 5], [0, 1, 0, 1, 2, 3]]
    assert batch["mm_token_type_ids"][1].tolist() == [0, 0, 0, 1, 0, 0]
    assert batch["labels"][1].tolist() == [8, *[-100] * 5]
    assert (batch["source_sample_num"], batch["num_input_tokens"]) == (2, 8)
    grown = collate_padded([text(1, 2)], dummy=dummy, **SETTINGS)
    assert grown["input_ids"].tolist() == [[1, 2, START, IMAGE, END]]


@given(data=st.data())
def test_a_batch_is_the_same_but_for_the_dummy(data, row_lists, make_row):
    rows = data.draw(row_lists)
    row = make_row(
        [START, IMAGE, END],
        [],
        positions=[[0, 1, 2]] * rows[0].sample.position_ids.shape[0],
        token_tensors={"mm_token_type_ids": torch.tensor([0, 1, 0])},
        media={"pixel_values": torch.ones(1, 2, dtype=torch.int64), "image_grid_thw": torch.tensor([[1, 1, 1]])},
    )
    dummy = make_dummy(row, MEDIA_IDS)
    plain = collate_packed(rows, **SETTINGS)
    given_one = collate_packed(rows, dummy=dummy, **SETTINGS)
    has_media = "pixel_values" in plain
    total = plain["input_ids"].shape[1]
    assert given_one["input_ids"].shape[1] == total + (0 if has_media else 3)
    assert given_one["image_grid_thw"].tolist() == plain.get("image_grid_thw", torch.tensor([[1, 1, 1]])).tolist()
    for name, value in plain.items():
        got = given_one[name]
        if isinstance(value, torch.Tensor) and value.shape[-1:] == (total,) and name not in ("pixel_values",):
            assert torch.equal(got[..., :total], value), name
    for name in ("source_sample_num", "num_input_tokens", "num_loss_tokens", "sample_keys"):
        assert given_one[name] == plain[name]


def test_it_keeps_to_the_length(dummy, text):
    fitting = collate_packed([text(1, 2, 3, 4, 5)], length=8, dummy=dummy, **SETTINGS)
    assert fitting["input_ids"].shape == (1, 8)
    with pytest.raises(BatchError, match="2 samples take 9 tokens"):
        collate_packed([text(1, 2, 3, 4, 5, 6)], length=8, dummy=dummy, **SETTINGS)
    with pytest.raises(BatchError, match="the dummy medium takes 3 tokens, and the shortest row leaves 2 of 8"):
        collate_padded([text(1, 2, 3, 4, 5, 6)], length=8, dummy=dummy, **SETTINGS)


def test_unknown_policy():
    with pytest.raises(ConfigError, match="dummy_media must be one of per_batch, off, got 'always'"):
        check_dummy_media("always")
