"""Best-fit-decreasing over whole epochs, the cost of packs, and the order in which neighbours cost alike."""

from __future__ import annotations

import bisect

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from packloom.errors import ConfigError, PackingError
from packloom.packing import PackLimits
from packloom.packing.balance import balanced_order, imbalance
from packloom.packing.cost import StepCost
from packloom.packing.offline import best_fit_decreasing

LIMIT = 24
SAMPLES = st.lists(st.tuples(st.integers(1, LIMIT), st.integers(0, 10)), max_size=60)


def pack(tokens: list[int], limit: int = 8, patches: list[int] | None = None, most: int | None = None) -> list[int]:
    found = best_fit_decreasing(
        np.array(tokens, dtype=np.int64),
        np.array(patches or [0] * len(tokens), dtype=np.int64),
        PackLimits(limit, most),
    )
    return list(map(int, found))


def one_by_one(tokens: list[int], limit: int) -> list[int]:
    """Each sample alone, into the pack with least room; of packs with equal room into any."""
    rooms: list[int] = []
    for size in sorted(tokens, reverse=True):
        place = bisect.bisect_left(rooms, size)
        room = rooms.pop(place) if place < len(rooms) else limit
        bisect.insort(rooms, room - size)
    return rooms


def test_packs_written_out() -> None:
    assert pack([3, 8, 5, 4, 4, 2]) == [1, 0, 1, 2, 2, 3]
    assert pack([2, 2, 2, 2, 2]) == [0, 0, 0, 0, 1]  # of equally long ones the first goes first
    assert pack([6, 5, 2, 3, 3]) == [0, 1, 0, 1, 2]
    assert pack([]) == []


def test_packs_written_out_where_patches_are_scarce_too() -> None:
    assert pack([4, 4, 8], patches=[4, 5, 0], most=8) == [2, 1, 0]
    # by tokens alone the two pictures would share a pack, and so would the two texts
    assert pack([4, 4, 4, 4], patches=[6, 6, 0, 0], most=8) == [0, 1, 0, 1]


@given(SAMPLES)
def test_rooms_are_those_of_one_by_one(samples: list[tuple[int, int]]) -> None:
    tokens = [size for size, _ in samples]
    packs = pack(tokens, LIMIT)
    assert sorted(set(packs)) == list(range(max(packs, default=-1) + 1))
    sums = np.bincount(packs, weights=tokens).astype(int) if packs else np.array([], dtype=int)
    assert sorted(LIMIT - sums) == sorted(one_by_one(tokens, LIMIT))


@given(SAMPLES, st.integers(10, 30))
def test_no_limit_is_exceeded(samples: list[tuple[int, int]], most: int) -> None:
    tokens, patches = [size for size, _ in samples], [number for _, number in samples]
    packs = pack(tokens, LIMIT, patches, most)
    for number in set(packs):
        members = [place for place, own in enumerate(packs) if own == number]
        assert sum(tokens[place] for place in members) <= LIMIT
        assert sum(patches[place] for place in members) <= most
    assert sorted(set(packs)) == list(range(max(packs, default=-1) + 1))


def test_a_sample_that_fits_no_pack() -> None:
    for tokens, patches, message in (
        ([1, 9], [0, 0], "index 1 costs 9 tokens"),
        ([0], [0], "0 tokens"),
        ([1], [7], "7"),
    ):
        with pytest.raises(PackingError, match=message):
            pack(tokens, 8, patches, 6)


def test_the_cost_of_samples() -> None:
    cost = StepCost(linear=1.0, attention=0.5, vision=0.25)
    assert cost.of(np.array([2, 4]), np.array([0, 8])).tolist() == [4000, 14000]  # 2 + 2, and 4 + 8 + 2
    assert StepCost().of(np.array([8192], dtype=np.int32), np.array([0])).tolist() == [9534177]
    with pytest.raises(ConfigError, match="nor all zero"):
        StepCost(linear=0, attention=0, vision=0)
    with pytest.raises(ConfigError, match="negative"):
        StepCost(vision=-1)


@given(st.lists(st.integers(0, 1000), max_size=80), st.sampled_from([1, 2, 6, 8, 12]), st.integers(0, 11))
def test_an_order_holds_each_pack_once(costs: list[int], group: int, lead: int) -> None:
    keys = np.random.default_rng(0).permutation(len(costs))
    order = balanced_order(np.array(costs, dtype=np.int64), keys, group=group, lead=lead % group)
    assert sorted(order.tolist()) == list(range(len(costs)))


def test_steps_of_any_divisor_hold_neighbours_by_cost() -> None:
    costs = np.random.default_rng(1).permutation(24 * 5 + 7)
    keys = np.random.default_rng(2).permutation(costs.size)
    order = balanced_order(costs, keys, group=24, lead=3)
    ordered = costs[order]
    assert sorted(ordered[:3]) == [0, 1, 2]  # the cheapest complete the group before
    assert sorted(ordered[-4:]) == [3, 4, 5, 6]
    for ranks, spread in ((2, 1), (4, 3), (8, 7), (24, 23)):
        steps = ordered[3:-4].reshape(-1, ranks)
        assert set(np.ptp(steps, axis=1)) == {spread}
        assert (np.diff(steps.min(axis=1)) < 0).any()  # and the steps themselves are shuffled
    other = balanced_order(costs, np.random.default_rng(3).permutation(costs.size), group=24, lead=3)
    assert not np.array_equal(order, other)


def test_imbalance_written_out() -> None:
    assert imbalance(np.array([2, 2, 4, 4]), 2) == 1.0
    assert imbalance(np.array([2, 4, 2, 4, 9]), 2) == 8 / 6  # the last makes no whole step
    assert imbalance(np.array([1]), 2) == 1.0


def test_one_epoch_of_a_realistic_mix_is_full_and_even() -> None:
    generator = np.random.default_rng(0)
    tokens = np.clip(generator.lognormal(6.9, 0.9, 20_000), 16, 8192).astype(np.int64)
    patches = (tokens * generator.choice([0, 2], tokens.size)).astype(np.int64)
    packs = best_fit_decreasing(tokens, patches, PackLimits(8192))
    costs = np.bincount(packs, weights=StepCost().of(tokens, patches)).astype(np.int64)
    order = balanced_order(costs, generator.permutation(costs.size), group=96)
    assert tokens.sum() / costs.size / 8192 > 0.995
    assert imbalance(costs[order], 8) < 1.005
    assert imbalance(costs, 8) > 1.03
