"""The arithmetic of lanes: who makes which batch, and where rounds begin."""

from __future__ import annotations

import re
from itertools import count

import pytest
from hypothesis import given
from hypothesis import strategies as st

from packloom.errors import ConfigError
from packloom.loader.lanes import LaneGrid, check_cluster, count_lanes

STARTS = st.integers(0, 300)


@st.composite
def clusters(draw: st.DrawFn) -> tuple[int, int, int]:
    """(num_lanes, dp_size, num_workers) of some 96-lane dataset: any divisor of lanes, any divisor of makers."""
    slots = draw(st.sampled_from([1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 96]))
    dp_size = draw(st.sampled_from([n for n in range(1, slots + 1) if slots % n == 0]))
    return draw(st.sampled_from([1, 2, 3, 4, 6, 8, 12, 24, 96])), dp_size, slots // dp_size


def grids(cluster: tuple[int, int, int]) -> list[LaneGrid]:
    num_lanes, dp_size, num_workers = cluster
    return [
        LaneGrid(num_lanes=num_lanes, dp_rank=rank, dp_size=dp_size, num_workers=num_workers) for rank in range(dp_size)
    ]


@given(clusters(), STARTS)
def test_each_batch_is_made_once_and_in_turn(cluster: tuple[int, int, int], start: int) -> None:
    num_lanes, dp_size, num_workers = cluster
    steps = 2 * num_workers
    made = []
    for grid in grids(cluster):
        shares = [count(*grid.worker_batches(start, worker)) for worker in range(num_workers)]
        own = [next(shares[step % num_workers]) for step in range(steps)]
        assert own == [start + step * dp_size + grid.dp_rank for step in range(steps)]
        made += own
        lanes = {batch % num_lanes for batch in range(start + grid.dp_rank, start + 96 * dp_size, dp_size)}
        assert grid.own_lanes(start) == sorted(lanes)
        assert grid.sees_all_lanes == (len(lanes) == num_lanes)
    assert sorted(made) == list(range(start, start + steps * dp_size))


@given(clusters(), STARTS)
def test_in_a_round_each_rank_meets_each_of_its_lanes_once(cluster: tuple[int, int, int], start: int) -> None:
    num_lanes, dp_size, _ = cluster
    for grid in grids(cluster):
        boundary = grid.next_boundary(start, start)
        assert boundary == next(n for n in count(start + dp_size, dp_size) if grid.is_boundary(n))
        batches = range(boundary, boundary + grid.round_size)
        assert all(grid.next_boundary(batch, start) == batches.stop for batch in batches)
        lanes = [batch % num_lanes for batch in batches[grid.dp_rank :: dp_size]]
        assert sorted(lanes) == grid.own_lanes(start)
        for lane in set(lanes):
            slots = [batch // num_lanes for batch in batches if batch % num_lanes == lane]
            assert (slots[0], slots[-1]) == tuple(
                grid.slot_needed(boundary, lane, whole_round=whole) for whole in (False, True)
            )
            assert grid.slots_before(boundary, lane) == len(range(lane, boundary, num_lanes)) == slots[0]


def test_rounds_begin_where_they_did_before() -> None:
    grid = LaneGrid(num_lanes=6, dp_size=4)
    assert grid.round_size == 12
    assert [batch for batch in range(0, 40, 4) if grid.is_boundary(batch)] == [0, 12, 24, 36]
    # After 5 batches on one rank, 4 ranks go on: their rounds begin at 1, 13, ...
    assert [batch for batch in range(5, 40, 4) if grid.is_boundary(batch)] == [13, 25, 37]


def test_the_number_of_lanes() -> None:
    counts = [count_lanes(total, num_lanes=96, min_samples=1024) for total in (0, 5, 2047, 2048, 6000, 98_303, 10**8)]
    assert counts == [1, 1, 1, 2, 4, 48, 96]
    assert count_lanes(4000, num_lanes=7, min_samples=1000) == 1
    assert count_lanes(7000, num_lanes=7, min_samples=1000) == 7


@given(st.integers(1, 200), st.integers(1, 40), st.integers(0, 12))
def test_the_pairs_and_lanes_that_are_suggested_work(num_lanes: int, dp_size: int, num_workers: int) -> None:
    if num_lanes % (dp_size * max(1, num_workers)) == 0:
        check_cluster(num_lanes, dp_size=dp_size, num_workers=num_workers)
        return
    with pytest.raises(ConfigError) as caught:
        check_cluster(num_lanes, dp_size=dp_size, num_workers=num_workers)
    pairs = re.findall(r"\((\d+), (\d+)\)", str(caught.value))
    assert pairs
    for pair in pairs:
        check_cluster(num_lanes, dp_size=int(pair[0]), num_workers=int(pair[1]))
    lanes = re.search(r"num_lanes=(\d+)(?: or (\d+))?", str(caught.value))
    assert lanes
    for number in filter(None, lanes.groups()):
        check_cluster(int(number), dp_size=dp_size, num_workers=num_workers)


def test_the_nearest_come_first() -> None:
    with pytest.raises(ConfigError, match=re.escape("(dp_size, num_workers): (8, 4), (6, 4), (8, 3)")):
        check_cluster(96, dp_size=7, num_workers=4)
    with pytest.raises(ConfigError, match="num_lanes=128,"):
        check_cluster(96, dp_size=32, num_workers=4)
