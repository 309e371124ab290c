"""Histograms: round edges, every value in its bin, bars of text."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from packloom.report.histogram import histogram


def test_by_hand() -> None:
    found = histogram([0, 1, 9, 10, 25, 39], max_bins=4)
    assert found.edges == (0, 10, 20, 30, 40)
    assert found.counts == (3, 1, 1, 1)
    assert found.lines(width=6) == [" 0 – 10 ██████ 3", "10 – 20 ██     1", "20 – 30 ██     1", "30 – 40 ██     1"]


def test_one_value_and_none() -> None:
    assert histogram([7, 7]).as_dict() == {"edges": [7, 8], "counts": [2]}
    assert histogram([]).lines() == []


@given(st.lists(st.integers(0, 10**9), min_size=1), st.integers(1, 20))
def test_every_value_lies_in_its_bin(values: list[int], max_bins: int) -> None:
    found = histogram(values, max_bins=max_bins)
    pairs = list(zip(found.edges, found.edges[1:], strict=False))
    assert list(found.counts) == [sum(low <= value < high for value in values) for low, high in pairs]
    assert sum(found.counts) == len(values)
    assert len(found.counts) <= max_bins + 1
