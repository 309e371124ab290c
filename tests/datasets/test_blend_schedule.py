"""Schedules of blends: shares at every prefix, exact counts at the end of an epoch, and no two lanes in step."""

from __future__ import annotations

import logging
import math
from collections import Counter
from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from packloom.datasets import blend_schedule
from packloom.datasets.blend_schedule import SplitSchedule, WeightedSchedule
from packloom.errors import ConfigError

weights = st.lists(st.integers(1, 40), min_size=1, max_size=7)


@settings(max_examples=60, deadline=None)
@given(weights, st.integers(0, 5), st.integers(0, 3))
def test_shares_hold_within_one_sample_at_every_prefix(numbers: list[int], lane: int, seed: int) -> None:
    total = sum(numbers)
    schedule = WeightedSchedule([Fraction(number, total) for number in numbers], seed=seed)
    counts = [0] * len(numbers)
    for draw in range(300):  # more than a period
        leaf, rank = schedule.at(lane, draw)
        assert rank == counts[leaf]
        counts[leaf] += 1
        for number, count in zip(numbers, counts, strict=True):
            assert abs(count * total - number * (draw + 1)) < total


@settings(max_examples=20, deadline=None)
@given(weights)
def test_any_draw_is_found_at_once(numbers: list[int]) -> None:
    total = sum(numbers)
    schedule = WeightedSchedule([Fraction(number, total) for number in numbers], seed=0)
    far = 10**12 * total
    for draw in range(5):
        leaf, rank = schedule.at(1, draw)
        shortest = total // math.gcd(*numbers)
        times = -(-128 // shortest) * shortest
        start = far - far % times  # a period begins there
        assert schedule.at(1, start + draw) == (leaf, rank + start * numbers[leaf] // total)


def test_lanes_do_not_draw_the_same_leaf_at_once() -> None:
    schedule = WeightedSchedule([Fraction(1, 2), Fraction(1, 2)], seed=0)
    assert {schedule.at(lane, 0)[0] for lane in range(16)} == {0, 1}
    split = [SplitSchedule(counts=(5, 5), seed=lane).at(0)[0] for lane in range(16)]
    assert set(split) == {0, 1}


def test_equal_leaves_are_spread() -> None:
    schedule = WeightedSchedule([Fraction(9, 10), *[Fraction(1, 100)] * 10], seed=3)
    rare = [draw for draw in range(100) if schedule.at(0, draw)[0]]
    assert len(rare) == 10
    assert max(rare) - min(rare) > 50  # not all of them where their windows end


@settings(max_examples=60, deadline=None)
@given(st.lists(st.integers(0, 30), min_size=1, max_size=7).filter(any), st.integers(0, 3))
def test_an_epoch_is_exact(counts: list[int], seed: int) -> None:
    schedule = SplitSchedule(counts=tuple(counts), seed=seed)
    assert schedule.length == sum(counts)
    drawn = [schedule.at(draw) for draw in range(schedule.length)]
    assert sorted(drawn) == [(leaf, rank) for leaf, count in enumerate(counts) for rank in range(count)]
    seen = Counter[int]()
    for leaf, rank in drawn:
        assert rank == seen[leaf]
        seen[leaf] += 1


def test_weights_of_too_many_digits_are_rounded(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(blend_schedule, "MAX_PERIOD", 1 << 10)
    shares = [Fraction(1, 3) + Fraction(1, 10**9), Fraction(2, 3) - Fraction(1, 10**9)]
    with caplog.at_level(logging.WARNING):
        schedule = WeightedSchedule(shares, seed=0)
    assert "rounded to multiples of 1/1024" in caplog.text
    assert Counter(schedule.at(0, draw)[0] for draw in range(1024)) == {0: 341, 1: 683}
    with pytest.raises(ConfigError, match="below 1 in 1024"):
        WeightedSchedule([Fraction(1, 10**7), 1 - Fraction(1, 10**7)], seed=0)
