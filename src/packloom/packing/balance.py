"""The costs of packs go in; an order in which neighbours cost alike comes out, or how far they do."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from packloom.packing.cost import Counts


def balanced_order(costs: Counts, keys: Counts, *, group: int, lead: int = 0) -> NDArray[np.int64]:
    """[K] costs and [K] distinct random keys → [K] the packs, ordered.

    Sorted by cost, packs are cut into groups of ``group``; these come in the order of the keys, and so do the packs of
    each, in blocks within blocks after the prime factors of ``group``: so the packs of a step on any number of ranks
    that divides ``group`` cost nearly the same. The cheapest packs stand at the two ends, in smaller groups: ``lead``
    ones at the front, which complete a group that began before, and behind those that make no whole group.
    """
    ranked = np.lexsort((keys, costs))
    lead = min(lead, ranked.size)
    loose = lead + (ranked.size - lead) % group
    first, body, last = ranked[:lead], ranked[loose:], ranked[lead:loose]
    factors = _prime_factors(group)
    if factors:
        smaller = group // factors[-1]
        first = first[balanced_order(costs[first], keys[first], group=smaller, lead=lead % smaller)]
        last = last[balanced_order(costs[last], keys[last], group=smaller)]
    return np.concatenate([first, _shuffled_blocks(body, keys[body], (*factors, body.size // group)), last])


def imbalance(costs: Counts, num_ranks: int) -> float:
    """What steps of ``num_ranks`` packs each, in this order, take over what they would if all cost the mean; 1.0 best.

    That is the sum over whole steps of the dearest pack, over the sum of the mean ones.
    """
    steps = costs[: costs.size // num_ranks * num_ranks].reshape(-1, num_ranks)
    return float(steps.max(axis=1).sum() * num_ranks / steps.sum()) if steps.size else 1.0


def _shuffled_blocks(items: NDArray[np.int64], keys: Counts, sizes: Sequence[int]) -> NDArray[np.int64]:
    """The items with each ``sizes[0]`` of them in the order of their keys, each ``sizes[1]`` of those blocks, ..."""
    if not items.size:
        return items
    blocks = items[:, np.newaxis]  # [number of blocks, items of each]
    for size in sizes:
        keys = keys.reshape(-1, size)
        places = np.argsort(keys, axis=1)[:, :, np.newaxis]
        blocks = np.take_along_axis(blocks.reshape(*keys.shape, -1), places, axis=1)
        blocks = blocks.reshape(blocks.shape[0], -1)
        keys = keys.min(axis=1)
    return blocks.ravel()


def _prime_factors(number: int) -> list[int]:
    """Ascending, each as often as it divides."""
    factors, factor = [], 2
    while number > 1:
        while number % factor == 0:
            factors.append(factor)
            number //= factor
        factor += 1
    return factors
