"""make_permutation: a bijection with an inverse for any size, a full shuffle."""

from __future__ import annotations

import math
from collections import Counter
from itertools import permutations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from packloom.datasets.permutation import make_permutation
from packloom.errors import ConfigError


@settings(deadline=None, max_examples=60)
@given(st.integers(1, 300), st.integers(0, 2**64))
def test_a_bijection_with_its_inverse(size: int, seed: int) -> None:
    order = make_permutation(size, seed, "test")
    items = [order.at(place) for place in range(size)]
    assert sorted(items) == list(range(size))
    assert [order.place_of(item) for item in items] == list(range(size))
    np.testing.assert_array_equal(order.at_many(np.arange(size)), items)


@settings(deadline=None)
@given(st.integers(1, 2**48), st.data())
def test_any_place_of_a_huge_one(size: int, data: st.DataObject) -> None:
    order = make_permutation(size, 7)
    place = data.draw(st.integers(0, size - 1))
    item = order.at(place)
    assert 0 <= item < size
    assert order.place_of(item) == place
    assert order.at_many(np.array([place])).tolist() == [item]


def test_the_values_never_change() -> None:
    """A run that resumes with a later version must find the same order."""
    assert [make_permutation(10, "x", 1).at(place) for place in range(10)] == [8, 0, 5, 9, 4, 2, 6, 3, 7, 1]
    big = make_permutation(10**12, "x", 1)
    assert [big.at(place) for place in (0, 1, 10**12 - 1)] == [831055552170, 104487955347, 160288383093]


@pytest.mark.parametrize("size", [2, 3, 5])
def test_every_order_of_a_few_is_equally_likely(size: int) -> None:
    num_draws = 3000
    counts = Counter(
        tuple(make_permutation(size, "draw", draw).at_many(np.arange(size)).tolist()) for draw in range(num_draws)
    )
    expected = num_draws / math.factorial(size)
    chi2 = sum((counts[order] - expected) ** 2 / expected for order in permutations(range(size)))
    freedom = math.factorial(size) - 1
    assert abs(chi2 - freedom) < 4 * math.sqrt(2 * freedom)


def test_neighbours_land_at_any_distance() -> None:
    """The distances between the items of neighbouring places are spread evenly, as in a full shuffle."""
    size, distances = 100, Counter()
    for draw in range(150):
        items = make_permutation(size, "neighbours", draw).at_many(np.arange(size))
        distances.update((np.diff(items) % size).tolist())
    expected = distances.total() / (size - 1)
    chi2 = sum((distances[distance] - expected) ** 2 / expected for distance in range(1, size))
    assert chi2 < 98 + 4 * math.sqrt(2 * 98)


def test_places_outside_are_refused() -> None:
    order = make_permutation(3, 0)
    for bad in (-1, 3):
        with pytest.raises(IndexError):
            order.at(bad)
        with pytest.raises(IndexError):
            order.place_of(bad)
    with pytest.raises(ConfigError, match="at least one item, got 0"):
        make_permutation(0, 1)
