"""What holds for every batch in either layout: properties over random rows, the dtype contract, and bad rows."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from packloom.collates import TokenField, collate
from packloom.errors import BatchError, ConfigError
from packloom.types import Row

MakeRow = Callable[..., Row]
SHIFTS = st.sampled_from(["next_token", "none"])
PER_TOKEN = ("input_ids", "labels", "loss_mask", "padding_mask", "position_ids", "pack_segment_ids")


def _settings(data: st.DataObject, rows: list[Row]) -> dict[str, int | None]:
    multiple = data.draw(st.sampled_from([1, 2, 4, 6]))
    total = sum(-(-row.sample.num_tokens // multiple) * multiple for row in rows)
    spare = data.draw(st.none() | st.integers(0, 3))
    return {"segment_multiple": multiple, "length": None if spare is None else total + multiple * spare}


@given(data=st.data(), shift=SHIFTS)
def test_unpacking_gives_the_rows_back(
    data: st.DataObject, shift: Any, row_lists: st.SearchStrategy[list[Row]], segments: Callable[..., list[slice]]
) -> None:
    rows = data.draw(row_lists)
    batch = collate(rows, layout="packed", label_shift=shift, pad_id=0, **_settings(data, rows))
    places = segments(batch)
    assert len(places) == len(rows) == batch["source_sample_num"]
    pixels = 0
    for number, (row, place) in enumerate(zip(rows, places, strict=True), 1):
        sample = row.sample
        assert torch.equal(batch["input_ids"][0, place], sample.input_ids)
        assert torch.equal(batch["position_ids"][..., 0, place].view_as(sample.position_ids), sample.position_ids)
        assert torch.equal(batch["mm_token_type_ids"][0, place], sample.token_tensors["mm_token_type_ids"])
        assert batch["pack_segment_ids"][0, place].tolist() == [number] * sample.num_tokens
        assert not batch["padding_mask"][0, place].any()
        for own in [row.media_tensors["pixel_values"]] if row.media_tensors else []:
            assert torch.equal(batch["pixel_values"][pixels : pixels + len(own)], own)
            pixels += len(own)
    real = sum(row.sample.num_tokens for row in rows)
    assert int((~batch["padding_mask"]).sum()) == int((batch["pack_segment_ids"] > 0).sum()) == real
    assert batch["num_input_tokens"] == real


@given(data=st.data(), shift=SHIFTS, layout=st.sampled_from(["packed", "padded"]))
def test_every_target_is_a_trained_token_of_its_own_sample(
    data: st.DataObject, shift: Any, layout: Any, row_lists: st.SearchStrategy[list[Row]]
) -> None:
    """By brute force over positions: the target of t is the token at t + 1 (or at t) of the same segment, or none."""
    rows = data.draw(row_lists)
    batch = collate(rows, layout=layout, label_shift=shift, pad_id=0, segment_multiple=data.draw(st.integers(1, 4)))
    masks = iter([mask for row in rows for mask in row.sample.loss_mask.tolist()])
    trained = torch.zeros_like(batch["padding_mask"])
    trained[~batch["padding_mask"]] = torch.tensor(list(masks))
    step = 1 if shift == "next_token" else 0
    for row, line in enumerate(batch["labels"].tolist()):
        segments = batch["pack_segment_ids"][row].tolist()
        for t, label in enumerate(line):
            target = t + step
            allowed = target < len(line) and segments[t] == segments[target] > 0 and trained[row, target]
            assert label == (batch["input_ids"][row, target] if allowed else -100)
            assert batch["loss_mask"][row, t] == float(allowed)


@given(data=st.data(), shift=SHIFTS)
def test_layouts_agree_on_the_counts(data: st.DataObject, shift: Any, row_lists: st.SearchStrategy[list[Row]]) -> None:
    rows = data.draw(row_lists)
    packed = collate(rows, layout="packed", label_shift=shift, pad_id=0, **_settings(data, rows))
    padded = collate(rows, layout="padded", label_shift=shift, pad_id=0)
    single = [collate([row], layout="packed", label_shift=shift, pad_id=0) for row in rows]
    for name in ("num_loss_tokens", "num_input_tokens", "source_sample_num"):
        assert packed[name] == padded[name] == sum(batch[name] for batch in single)
    assert packed["num_loss_tokens"] == int(packed["loss_mask"].sum()) == int(padded["loss_mask"].sum())
    assert packed["sample_keys"] == padded["sample_keys"] == [row.sample.key for row in rows]


@given(data=st.data(), shift=SHIFTS, layout=st.sampled_from(["packed", "padded"]))
def test_padding_and_types(
    data: st.DataObject, shift: Any, layout: Any, row_lists: st.SearchStrategy[list[Row]]
) -> None:
    rows = data.draw(row_lists)
    batch = collate(rows, layout=layout, label_shift=shift, pad_id=17, segment_multiple=data.draw(st.integers(1, 5)))
    ids, padding = batch["input_ids"], batch["padding_mask"]
    axes = rows[0].sample.position_ids.shape[0]
    assert batch["position_ids"].shape == (ids.shape if axes == 1 else (3, *ids.shape))
    assert all(batch[name].shape == ids.shape for name in (*PER_TOKEN, "mm_token_type_ids") if name != "position_ids")
    floats, booleans = {"loss_mask"}, {"padding_mask"}
    for name in (*PER_TOKEN, "mm_token_type_ids"):
        dtype = torch.float32 if name in floats else torch.bool if name in booleans else torch.int64
        assert batch[name].dtype == dtype
    for name, value in (("input_ids", 17), ("labels", -100), ("loss_mask", 0), ("pack_segment_ids", 0)):
        assert (batch[name][padding] == value).all()
    assert (batch["mm_token_type_ids"][padding] == 0).all()
    if layout == "padded":
        assert batch["attention_mask"].dtype == torch.int64
        assert torch.equal(batch["attention_mask"], (~padding).long())
        return
    assert batch["attention_mask"] is None
    physical = batch.get("cu_seqlens_q_padded", batch["cu_seqlens_q"])
    assert batch["cu_seqlens_q"].dtype == physical.dtype == torch.int32
    assert physical[-1] == ids.shape[1]
    assert type(batch["max_seqlen_q"]) is int
    assert batch["max_seqlen_q"] == batch["max_seqlen_kv"] == int(physical.diff().max())
    assert ("cu_seqlens_q_padded" in batch) == bool(padding.any())


def test_positions_step_by_one_through_padding(make_row: MakeRow) -> None:
    """Padding that stood still would read as one sequence per pad token."""
    row = make_row([1, 2, 3])
    for layout, length in (("packed", 9), ("padded", 9)):
        batch = collate([row], layout=layout, label_shift="none", pad_id=0, length=length)
        assert batch["position_ids"][0].tolist() == list(range(9))


def test_an_extra_token_tensor_is_padded_as_registered(make_row: MakeRow) -> None:
    scores = TokenField(name="scores", pad_value=-1.0, dtype=torch.float32)
    rows = [make_row([1, 2], token_tensors={"scores": torch.tensor([0.5, 0.25])}) for _ in range(2)]
    packed = collate(rows, layout="packed", label_shift="none", pad_id=0, segment_multiple=3, token_fields=[scores])
    assert packed["scores"].tolist() == [[0.5, 0.25, -1.0, 0.5, 0.25, -1.0]]
    padded = collate(rows, layout="padded", label_shift="none", pad_id=0, length=3, token_fields=[scores])
    assert padded["scores"].tolist() == [[0.5, 0.25, -1.0]] * 2


def test_an_unregistered_token_tensor_is_named(make_row: MakeRow) -> None:
    row = make_row([1, 2], key="odd", token_tensors={"scores": torch.tensor([0.5, 0.25])})
    with pytest.raises(BatchError, match=r"sample 'odd' has a token tensor 'scores'.*TokenField"):
        collate([row], layout="packed", label_shift="none", pad_id=0)
    with pytest.raises(BatchError, match="token tensor 'labels'"):
        collate(
            [make_row([1], token_tensors={"labels": torch.tensor([1])})], layout="padded", label_shift="none", pad_id=0
        )


def test_a_text_row_beside_rows_with_token_types(make_row: MakeRow) -> None:
    image = make_row([1, 2], token_tensors={"mm_token_type_ids": torch.tensor([1, 1])})
    batch = collate([make_row([3]), image], layout="packed", label_shift="none", pad_id=0)
    assert batch["mm_token_type_ids"].tolist() == [[0, 1, 1]]
    lacking = make_row([3], key="lacks", media={"pixel_values": torch.zeros(1, 2)})
    with pytest.raises(BatchError, match="'lacks' lacks the token tensor 'mm_token_type_ids'"):
        collate([lacking, image], layout="packed", label_shift="none", pad_id=0)


@pytest.mark.parametrize("name", ["labels", "layout", "cu_seqlens_q"])
def test_a_name_that_the_batch_uses_cannot_be_registered(make_row: MakeRow, name: str) -> None:
    field = TokenField(name=name, pad_value=0)
    with pytest.raises(ConfigError, match=f"makes {name} itself"):
        collate([make_row([1])], layout="padded", label_shift="none", pad_id=0, token_fields=[field])
    row = make_row([1], media={name: torch.ones(1)})
    with pytest.raises(BatchError, match=f"{name} cannot be a media key"):
        collate([row], layout="padded", label_shift="none", pad_id=0, media_joins={name: "concat"})


@pytest.mark.parametrize("layout", ["packed", "padded"])
def test_no_rows(layout: Any) -> None:
    with pytest.raises(BatchError, match="at least one row"):
        collate([], layout=layout, label_shift="none", pad_id=0)


def test_entry_refuses_what_a_layout_does_not_have(make_row: MakeRow) -> None:
    with pytest.raises(ConfigError, match="layout must be 'packed' or 'padded', got 'thd'"):
        collate([make_row([1])], layout="thd", label_shift="none", pad_id=0)
    with pytest.raises(ConfigError, match="always_padded_boundaries"):
        collate([make_row([1])], layout="padded", label_shift="none", pad_id=0, always_padded_boundaries=True)


def test_one_batch_has_one_number_of_position_axes(make_row: MakeRow) -> None:
    rows = [make_row([1, 2], key="flat"), make_row([1, 2], key="mrope", positions=[[0, 1]] * 3)]
    with pytest.raises(BatchError, match="'flat' has 1 position axes, sample 'mrope' has 3"):
        collate(rows, layout="packed", label_shift="none", pad_id=0)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"input_ids": torch.tensor([1, 2], dtype=torch.int32)}, "input_ids must be torch.int64"),
        ({"input_ids": torch.tensor([], dtype=torch.int64)}, "has no tokens"),
        ({"input_ids": torch.tensor([[1], [2]])}, r"input_ids .* shape \[2\]"),
        ({"loss_mask": torch.tensor([1, 1])}, "loss_mask must be torch.bool"),
        ({"loss_mask": torch.tensor([True])}, r"loss_mask .* got torch.bool of shape \[1\]"),
        ({"position_ids": torch.tensor([[0, 1, 2]])}, "position_ids must be"),
        ({"position_ids": torch.tensor([0, 1])}, "position_ids must be"),
        ({"position_ids": torch.tensor([[0, 1]], dtype=torch.float32)}, "position_ids must be torch.int64"),
        ({"position_ids": torch.tensor([[0, 1]] * 2)}, "2 position axes"),
        ({"position_ids": torch.tensor([[4, 5]])}, r"start at \[4\], they must start at 0"),
        ({"token_tensors": {"mm_token_type_ids": torch.tensor([0])}}, "mm_token_type_ids must be"),
        ({"token_tensors": {"mm_token_type_ids": torch.tensor([0.0, 1.0])}}, "mm_token_type_ids must be torch.int64"),
    ],
)
def test_a_row_that_breaks_the_contract_is_named(make_row: MakeRow, change: Mapping[str, Any], message: str) -> None:
    good = make_row([1, 2], key="bad")
    row = dataclasses.replace(good, sample=dataclasses.replace(good.sample, **change))
    with pytest.raises(BatchError, match=f"'bad'.*{message}"):
        collate([row], layout="packed", label_shift="none", pad_id=0)
