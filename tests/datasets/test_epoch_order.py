"""EpochOrder: every sample once over all lanes, any place at once, whole blocks within windows, a pure function."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import packloom.datasets.epoch_order
from packloom.datasets import EpochOrder
from packloom.errors import ConfigError


def lanes(order: EpochOrder) -> list[list[int]]:
    return [list(order.iterate(lane)) for lane in range(order.num_lanes)]


orders = st.builds(
    EpochOrder,
    total=st.integers(0, 150),
    fingerprint=st.sampled_from(["one", "two"]),
    seed=st.integers(0, 2**32),
    epoch=st.integers(0, 5),
    shuffle=st.booleans(),
    num_lanes=st.integers(1, 9),
    block_size=st.integers(1, 40),
    window=st.integers(1, 100),
    turn=st.integers(1, 5),
)


@settings(deadline=None, max_examples=60)
@given(orders, st.data())
def test_every_sample_once_and_any_place_at_once(order: EpochOrder, data: st.DataObject) -> None:
    found = lanes(order)
    assert sorted(position for lane in found for position in lane) == list(range(order.total))
    assert [len(lane) for lane in found] == [order.lane_length(lane) for lane in range(order.num_lanes)]
    lane = data.draw(st.integers(0, order.num_lanes - 1))
    assert [order.at(place, lane) for place in range(len(found[lane]))] == found[lane]
    start = data.draw(st.integers(0, len(found[lane])))
    assert list(order.iterate(lane, start)) == found[lane][start:]


@given(orders)
def test_lanes_are_of_equal_length(order: EpochOrder) -> None:
    lengths = [order.lane_length(lane) for lane in range(order.num_lanes)]
    assert max(lengths) - min(lengths) <= (1 if order.shuffle else order.turn)


def test_a_lane_reads_whole_blocks_of_consecutive_samples_window_by_window() -> None:
    order = EpochOrder(total=6400, fingerprint="x", num_lanes=4, block_size=16, window=160)
    for lane in lanes(order):
        for first in range(0, 1600, 160):
            window = sorted(lane[first : first + 160])
            assert window != lane[first : first + 160]
            starts = [position for position in window if position % 16 == 0]
            assert window == [start + place for start in starts for place in range(16)]
            assert len(starts) == 10


def test_the_short_last_block_may_stand_anywhere() -> None:
    places = set()
    for epoch in range(60):
        order = EpochOrder(total=21, fingerprint="x", epoch=epoch, block_size=5, window=1)
        [lane] = lanes(order)
        places.add(lane.index(20))
        assert sorted(lane) == list(range(21))
    assert places == {0, 5, 10, 15, 20}


@pytest.mark.parametrize(
    "change", [{"seed": 1}, {"epoch": 1}, {"fingerprint": "y"}, {"block_size": 8}, {"window": 200}, {"num_lanes": 3}]
)
def test_each_field_changes_the_order(change: dict[str, Any]) -> None:
    order = EpochOrder(total=1000, fingerprint="x")
    assert lanes(replace(order)) == lanes(order)
    assert list(replace(order, **change).iterate(0))[:100] != list(order.iterate(0))[:100]


def test_a_lane_gets_other_samples_in_the_next_epoch() -> None:
    first, second = (set(EpochOrder(total=10_000, fingerprint="x", epoch=n, num_lanes=10).iterate(3)) for n in (0, 1))
    assert len(first & second) < 300  # 100 by chance, in blocks of 16


def test_the_order_is_near_a_full_shuffle() -> None:
    order = EpochOrder(total=20_000, fingerprint="x", num_lanes=8, block_size=16, window=512)
    merged = np.array([position for row in zip(*lanes(order), strict=True) for position in row])
    assert abs(np.abs(merged - np.arange(20_000)).mean() / (20_000 / 3) - 1) < 0.05
    assert abs(np.corrcoef(merged[:-1], merged[1:])[0, 1]) < 0.03
    shards_per_batch = [len(set(batch // 100)) for batch in merged.reshape(-1, 80)]  # 200 shards of 100
    assert np.mean(shards_per_batch) > 60  # 66 under a full shuffle; 8 if each lane read its shards one by one


def test_without_shuffling_turns_of_all_lanes_are_the_dataset_in_its_order() -> None:
    order = EpochOrder(total=11, fingerprint="x", shuffle=False, num_lanes=2, turn=2)
    assert lanes(order) == [[0, 1, 4, 5, 8, 9], [2, 3, 6, 7, 10]]
    assert list(EpochOrder(total=5, fingerprint="x", shuffle=False).iterate()) == [0, 1, 2, 3, 4]


def test_a_place_far_inside_is_found_at_once() -> None:
    order = EpochOrder(total=10**12 + 7, fingerprint="x", num_lanes=64)
    far = order.lane_length(63) - 5
    assert list(order.iterate(63, far)) == [order.at(place, 63) for place in range(far, far + 5)]


def test_the_values_never_change() -> None:
    """A run that resumes with a later version must find the same order."""
    order = EpochOrder(total=50, fingerprint="abc", seed=7, epoch=2, num_lanes=5, block_size=4, window=6)
    assert lanes(order)[:2] == [
        [47, 46, 44, 24, 45, 27, 26, 25, 20, 21],
        [14, 12, 23, 13, 22, 11, 9, 10, 15, 8],
    ]


def test_equal_in_a_process_with_another_hash_seed() -> None:
    folder = Path(packloom.datasets.epoch_order.__file__).parent
    code = f"""
import sys, types
for name, path in (("packloom", {str(folder.parent)!r}), ("packloom.datasets", {str(folder)!r})):
    sys.modules[name] = types.ModuleType(name)  # without the package's other modules, which take seconds to import
    sys.modules[name].__path__ = [path]
from packloom.datasets.epoch_order import EpochOrder
print(list(EpochOrder(total=500, fingerprint="é", num_lanes=3).iterate(1)))
"""
    environment = {**os.environ, "PYTHONHASHSEED": "42"}
    found = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    assert found.stdout.strip() == str(list(EpochOrder(total=500, fingerprint="é", num_lanes=3).iterate(1)))


def test_more_lanes_than_samples_and_no_samples() -> None:
    assert sorted(map(len, lanes(EpochOrder(total=2, fingerprint="x", num_lanes=5)))) == [0, 0, 0, 1, 1]
    assert lanes(EpochOrder(total=0, fingerprint="x", num_lanes=2)) == [[], []]


def test_what_cannot_be_is_refused() -> None:
    for name in ("num_lanes", "block_size", "window", "turn"):
        with pytest.raises(ConfigError, match=f"{name} must be at least 1, got 0"):
            EpochOrder(**{"total": 5, "fingerprint": "x", name: 0})
    order = EpochOrder(total=10, fingerprint="x", num_lanes=2)
    for place, lane in ((5, 0), (-1, 0), (0, 2), (0, -1)):
        with pytest.raises(IndexError):
            order.at(place, lane)
    with pytest.raises(IndexError):
        next(order.iterate(0, 6))
