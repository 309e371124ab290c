"""The order: pure, different in each epoch, and over all worker slots every item exactly once."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from packloom.datasets.order import ShardRead, plan_reads, shuffle_shards, shuffle_window, split_reads
from packloom.errors import ConfigError
from packloom.rng import derive

SHARDS = [f"s{n}" for n in range(6)]


def test_whole_shards_when_there_is_one_per_slot() -> None:
    assert split_reads(SHARDS, slot=1, num_slots=4) == [ShardRead(path="s1"), ShardRead(path="s5")]
    assert split_reads(SHARDS, slot=5, num_slots=6) == [ShardRead(path="s5")]


def test_strided_items_when_there_are_fewer_shards_than_slots() -> None:
    assert split_reads(["a", "b"], slot=0, num_slots=3) == [
        ShardRead(path="a", first=0, step=3),
        ShardRead(path="b", first=2, step=3),
    ]


@given(
    sizes=st.lists(st.integers(0, 9), min_size=1, max_size=7),
    num_slots=st.integers(1, 9),
    epoch=st.integers(0, 3),
    shuffle=st.booleans(),
)
def test_every_item_exactly_once_over_all_slots(sizes: list[int], num_slots: int, epoch: int, shuffle: bool) -> None:
    shards = {f"s{place}": [(place, item) for item in range(size)] for place, size in enumerate(sizes)}
    seen: Counter[tuple[int, int]] = Counter()
    for slot in range(num_slots):
        reads = plan_reads(list(shards), seed=1, epoch=epoch, shuffle=shuffle, slot=slot, num_slots=num_slots)
        seen.update(item for read in reads for item in shards[read.path][read.first :: read.step])
    assert seen == Counter(item for items in shards.values() for item in items)


def test_a_slot_that_is_empty_in_one_epoch_is_not_so_in_all() -> None:
    for slot in range(4):
        reads = [plan_reads(["a"], seed=0, epoch=n, shuffle=True, slot=slot, num_slots=4) for n in range(4)]
        assert sorted(read.first for [read] in reads) == [0, 1, 2, 3]


def test_each_epoch_and_each_seed_has_its_own_order() -> None:
    orders = {
        (seed, epoch): tuple(shuffle_shards(SHARDS, seed=seed, epoch=epoch)) for seed in (0, 1) for epoch in (0, 1)
    }
    assert len(set(orders.values())) == 4
    assert all(sorted(order) == SHARDS for order in orders.values())
    assert shuffle_shards(SHARDS, seed=0, epoch=0) == list(orders[0, 0])
    moved = [f"/elsewhere/{name}" for name in SHARDS]
    assert shuffle_shards(moved, seed=0, epoch=0) == [f"/elsewhere/{name}" for name in orders[0, 0]]


def test_without_shuffling_the_order_stays() -> None:
    for epoch in (0, 1):
        reads = plan_reads(SHARDS, seed=epoch, epoch=epoch, shuffle=False, slot=0, num_slots=1)
        assert [read.path for read in reads] == SHARDS


@given(count=st.integers(0, 40), window=st.integers(1, 50), seed=st.integers(0, 5))
def test_a_window_keeps_every_item_and_bounds_how_early_it_comes(count: int, window: int, seed: int) -> None:
    out = list(shuffle_window(range(count), window=window, rng=derive(seed)))
    assert sorted(out) == list(range(count))
    assert all(item <= place + window for place, item in enumerate(out))
    assert out == list(shuffle_window(range(count), window=window, rng=derive(seed)))


def test_a_window_shuffles() -> None:
    assert list(shuffle_window(range(100), window=1, rng=derive(0))) == list(range(100))
    out = list(shuffle_window(range(100), window=50, rng=derive(0)))
    assert sum(abs(item - place) for place, item in enumerate(out)) > 1000


def test_a_slot_out_of_range_is_an_error() -> None:
    with pytest.raises(ConfigError, match=r"slot 2 is not in 0\.\.1"):
        plan_reads(SHARDS, seed=0, epoch=0, shuffle=True, slot=2, num_slots=2)
