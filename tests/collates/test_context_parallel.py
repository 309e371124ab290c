"""Context parallelism: written-out slices, slices that make up the whole again, attention and losses over slices."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from packloom.collates import collate_packed, collate_padded
from packloom.collates.context_parallel import join_slices, slice_batch, zigzag_places
from packloom.collates.tensors import TokenField
from packloom.errors import BatchError, ConfigError
from packloom.types import EncodedSample, Row

PER_TOKEN = (
    "input_ids",
    "labels",
    "loss_mask",
    "position_ids",
    "pack_segment_ids",
    "padding_mask",
    "mm_token_type_ids",
)


@pytest.mark.parametrize(
    ("boundaries", "places"),
    [
        ([0, 4, 12], [[0, 3, 4, 5, 10, 11], [1, 2, 6, 7, 8, 9]]),
        ([0, 8, 16], [[0, 1, 6, 7, 8, 9, 14, 15], [2, 3, 4, 5, 10, 11, 12, 13]]),
        ([0, 6, 12], [[0, 5, 6, 11], [1, 4, 7, 10], [2, 3, 8, 9]]),
        ([0, 3, 4], [[0, 1, 2, 3]]),
    ],
)
def test_places_of_each_rank(boundaries, places):
    got = [
        zigzag_places(torch.tensor(boundaries, dtype=torch.int32), cp_rank=rank, cp_size=len(places)).tolist()
        for rank in range(len(places))
    ]
    assert got == places


def make_row(length, axes, seed):
    generator = torch.Generator().manual_seed(seed)
    positions = torch.randint(0, 9, (axes, length), generator=generator)
    positions[:, 0] = 0
    sample = EncodedSample(
        key=f"s{seed}",
        input_ids=torch.randint(5, 99, (length,), generator=generator),
        loss_mask=torch.rand(length, generator=generator) < 0.5,
        position_ids=positions if axes == 3 else torch.arange(length)[None],
        token_tensors={"mm_token_type_ids": torch.randint(0, 2, (length,), generator=generator)},
    )
    return Row(sample=sample)


def batch_of(lengths, axes, cp_size, layout):
    rows = [make_row(length, axes, seed) for seed, length in enumerate(lengths)]
    collate = collate_packed if layout == "packed" else collate_padded
    return collate(rows, pad_id=0, label_shift="next_token", segment_multiple=2 * cp_size)


def boundaries_of(batch):
    if batch["layout"] == "packed":
        return batch.get("cu_seqlens_q_padded", batch["cu_seqlens_q"])
    return torch.tensor([0, batch["input_ids"].shape[1]])


@settings(max_examples=40, deadline=None)
@given(
    lengths=st.lists(st.integers(1, 13), min_size=1, max_size=5),
    axes=st.sampled_from([1, 3]),
    cp_size=st.integers(1, 4),
    layout=st.sampled_from(["packed", "padded"]),
)
def test_the_slices_of_all_ranks_are_the_batch(lengths, axes, cp_size, layout):
    batch = batch_of(lengths, axes, cp_size, layout)
    slices = [slice_batch(batch, cp_rank=rank, cp_size=cp_size, whole=()) for rank in range(cp_size)]
    total = batch["input_ids"].shape[-1]
    for part in slices:
        assert part.keys() == batch.keys()
        assert {name: part[name].shape[-1] for name in PER_TOKEN} == dict.fromkeys(PER_TOKEN, total // cp_size)
        assert {name: part[name] for name in batch if name not in (*PER_TOKEN, "attention_mask")} == {
            name: batch[name] for name in batch if name not in (*PER_TOKEN, "attention_mask")
        }
    whole = join_slices(slices, boundaries_of(batch), PER_TOKEN)
    for name in PER_TOKEN:
        assert torch.equal(whole[name], batch[name]), name
    assert sum(int(part["loss_mask"].sum()) for part in slices) == batch["num_loss_tokens"]


def test_the_table_keeps_the_ids_whole():
    batch = batch_of([3, 5], 3, 2, "packed")
    part = slice_batch(batch, cp_rank=0, cp_size=2)
    assert part["input_ids"] is batch["input_ids"]
    assert part["position_ids"].tolist() == batch["position_ids"][..., [0, 3, 4, 5, 10, 11]].tolist()
    kept = slice_batch(batch, cp_rank=0, cp_size=2, whole=("input_ids", "position_ids"))
    assert kept["position_ids"] is batch["position_ids"]
    assert kept["labels"].shape == (1, 6)


def test_a_padded_row_is_one_segment():
    batch = batch_of([3, 8], 1, 2, "padded")
    part = slice_batch(batch, cp_rank=1, cp_size=2)
    assert part["attention_mask"].tolist() == [[1, 0, 0, 0], [1, 1, 1, 1]]
    assert part["position_ids"].tolist() == [[2, 3, 4, 5], [2, 3, 4, 5]]


def test_a_users_tensor_is_sliced_by_its_field():
    batch = {**batch_of([4, 8], 1, 2, "packed"), "weights": torch.arange(12.0)[None], "names": torch.arange(12)[None]}
    fields = [TokenField(name="weights", pad_value=0), TokenField(name="names", pad_value=0, cp_slice="whole")]
    part = slice_batch(batch, cp_rank=0, cp_size=2, token_fields=fields)
    assert part["weights"].tolist() == [[0, 3, 4, 5, 10, 11]]
    assert part["names"].shape == (1, 12)


def attention(query, key, value, mask):
    scores = (query @ key.mT / query.shape[-1] ** 0.5).masked_fill(~mask, float("-inf"))
    return scores.softmax(dim=-1) @ value


@pytest.mark.parametrize("cp_size", [2, 3])
@pytest.mark.parametrize("layout", ["packed", "padded"])
def test_attention_over_slices_is_the_whole_attention(layout, cp_size):
    """Each rank has its queries and, as in a ring, sees the keys of all ranks, told apart by their own places."""
    batch = batch_of([5, 12, 7], 1, cp_size, layout)
    bounds, total = boundaries_of(batch), batch["input_ids"].shape[1]
    segment = torch.bucketize(torch.arange(total), bounds[1:], right=True)
    qkv = torch.randn(3, total, 8, generator=torch.Generator().manual_seed(0))

    def visible(queries, keys):
        return (segment[queries][:, None] == segment[keys]) & (queries[:, None] >= keys)

    everything = torch.arange(total)
    want = attention(*qkv, visible(everything, everything))
    places = [zigzag_places(bounds, cp_rank=rank, cp_size=cp_size) for rank in range(cp_size)]
    keys = torch.cat(places)
    got = torch.empty_like(want)
    for own in places:
        got[own] = attention(qkv[0, own], qkv[1, keys], qkv[2, keys], visible(own, keys))
    torch.testing.assert_close(got, want)
    work = [int(visible(own, everything).sum()) for own in places]
    assert max(work) == min(work), "the zigzag gives every rank the same work"


def test_what_cannot_be_sliced():
    rows = [make_row(3, 1, 0), make_row(5, 1, 1)]
    uneven = collate_packed(rows, pad_id=0, label_shift="next_token")
    with pytest.raises(BatchError, match=r"segment 0 has 3 tokens, no multiple of 2·cp = 4: .*cp_size=2"):
        slice_batch(uneven, cp_rank=0, cp_size=2)
    unshifted = collate_packed(rows, pad_id=0, label_shift="none", segment_multiple=4)
    with pytest.raises(BatchError, match="label_shift='next_token'"):
        slice_batch(unshifted, cp_rank=0, cp_size=2)
    batch = batch_of([3, 5], 1, 2, "packed")
    with pytest.raises(ConfigError, match=r"cp_rank 2 is not in 0\.\.1"):
        slice_batch(batch, cp_rank=2, cp_size=2)
    with pytest.raises(ConfigError, match="whole names pixels, which are no per-token"):
        slice_batch(batch, cp_rank=0, cp_size=2, whole=("pixels",))
    with pytest.raises(BatchError, match="boundaries end at 12, the batch has 6 tokens"):
        slice_batch(slice_batch(batch, cp_rank=0, cp_size=2, whole=()), cp_rank=0, cp_size=2)
    for layout in ("packed", "padded"):
        once = slice_batch(batch_of([3, 5], 1, 2, layout), cp_rank=0, cp_size=2)
        with pytest.raises(BatchError, match=r"tokens, input_ids \d+: slice a whole batch, and only once"):
            slice_batch(once, cp_rank=0, cp_size=2)
