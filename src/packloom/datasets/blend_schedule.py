"""Shares of leaves and a lane enter; for any draw, the leaf and how often it came before leave, in constant time.

Two kinds. ``WeightedSchedule`` never ends: after t draws leaf i came floor(w_i t) or ceil(w_i t) times. That any shares
allow this was shown by Tijdeman, "The chairman assignment problem", 1980; here draws are unit jobs with a release and
a deadline. ``SplitSchedule`` has an end, at which each leaf came exactly as often as it should.
"""

from __future__ import annotations

import heapq
import logging
import math
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import accumulate

import numpy as np

from packloom.errors import ConfigError
from packloom.rng import derive, derive_seed

logger = logging.getLogger(__name__)

#: Draws after which a schedule begins again, at most; weights of six digits are exact. The longest takes some seconds.
MAX_PERIOD = 1 << 20
#: Short periods are joined up to this many draws, so that schedules of different lanes can differ.
_MIN_PERIOD = 128
#: Draws of all schedules together; where lanes are more than fit, several have the same.
_MAX_DRAWS = 1 << 18


class WeightedSchedule:
    """The draws of endless lanes. Lanes have schedules of their own, or all would draw the same leaf at once."""

    def __init__(self, shares: Sequence[Fraction], *, seed: int) -> None:
        """``shares`` add up to one; those that need a longer period than MAX_PERIOD are rounded, with a warning."""
        self._weights = _whole_weights(shares)
        self._period = sum(self._weights)
        self._seed = seed
        self._times = -(-_MIN_PERIOD // self._period)
        self._num_variants = max(1, _MAX_DRAWS // (self._period * self._times))
        self._tables: dict[int, tuple[np.ndarray, np.ndarray]] = {}

    def at(self, lane: int, draw: int) -> tuple[int, int]:
        """(leaf, draws of this leaf in this lane before). The first call for a lane makes its schedule."""
        leaves, ranks = self._table(lane % self._num_variants)
        turns, place = divmod(draw, len(leaves))
        leaf = int(leaves[place])
        return leaf, turns * self._weights[leaf] * self._times + int(ranks[place])

    def _table(self, variant: int) -> tuple[np.ndarray, np.ndarray]:
        """[P] leaf of each draw and [P] its rank among the draws of that leaf."""
        if variant not in self._tables:
            leaves = make_schedule(self._weights, times=self._times, seed=derive_seed(self._seed, "blend", variant))
            ranks = np.empty(len(leaves), dtype=np.int32)
            for leaf in range(len(self._weights)):
                places = np.flatnonzero(leaves == leaf)
                ranks[places] = np.arange(len(places))
            self._tables[variant] = leaves, ranks
        return self._tables[variant]


def make_schedule(weights: Sequence[int], *, times: int, seed: int) -> np.ndarray:
    """[P] int32, the leaf of each of P = ``times * sum(weights)`` draws; leaf i came floor or ceil of its due at each.

    With D = sum(weights), draw j (from 0) of leaf i may come from draw floor(j D / w_i) on and must be among the first
    ceil((j + 1) D / w_i). Taking the earliest deadline always works. A leaf that is drawn at random, by weight, goes
    first where that leaves enough free draws for those that it overtakes, which ``_free_draws`` tells.
    """
    period, free = sum(weights), _free_draws(weights)
    rng, ends = derive(seed), list(accumulate(weights))
    done = [0] * len(weights)  # draws of each leaf
    taken_until = [0] * len(weights)  # the deadline of the last of them
    waiting: list[tuple[int, int]] = [(0, leaf) for leaf in range(len(weights))]  # (release, leaf)
    ready: list[tuple[int, int]] = []  # (deadline, leaf); what was overtaken stays until it comes up
    deadlines = [0] * len(weights)  # of the next draw of each leaf; 0 while it is not released
    leaves = np.empty(times * period, dtype=np.int32)
    for now in range(times * period):
        while waiting and waiting[0][0] <= now:
            leaf = heapq.heappop(waiting)[1]
            deadlines[leaf] = -(-(done[leaf] + 1) * period // weights[leaf])
            heapq.heappush(ready, (deadlines[leaf], leaf))
        while ready[0][0] != deadlines[ready[0][1]]:
            heapq.heappop(ready)
        first, leaf = ready[0]
        other = bisect_right(ends, int(rng.random() * period))
        if deadlines[other] > first:
            base = now - now % period
            ahead = sum(end > first for end in taken_until)
            if free[first - base : deadlines[other] - base].min() > ahead:
                leaf = other
        elif deadlines[other] == first:
            leaf = other
        leaves[now] = leaf
        done[leaf] += 1
        taken_until[leaf], deadlines[leaf] = deadlines[leaf], 0
        heapq.heappush(waiting, (done[leaf] * period // weights[leaf], leaf))
    return leaves


@dataclass(frozen=True, kw_only=True, slots=True)
class SplitSchedule:
    """A lane's draws of one epoch: leaf i comes ``counts[i]`` times.

    The draws are split between two halves of the leaves, each half between its halves, and so on; each split deals
    evenly: of t draws the left half of a node has floor((t w + r) / W), where w of W draws are its own.
    """

    counts: tuple[int, ...]
    seed: int = 0  # of r: lanes deal in different rhythms

    @property
    def length(self) -> int:
        return sum(self.counts)

    def at(self, draw: int) -> tuple[int, int]:
        """(leaf, draws of this leaf before) of a draw in 0..length-1."""
        low, high = 0, len(self.counts)
        while high - low > 1:
            middle = (low + high) // 2
            left, whole = sum(self.counts[low:middle]), sum(self.counts[low:high])
            shift = derive_seed(self.seed, low, high) % whole
            before, behind = (draw * left + shift) // whole, ((draw + 1) * left + shift) // whole
            low, high, draw = (low, middle, before) if behind > before else (middle, high, draw - before)
        return low, draw


def _whole_weights(shares: Sequence[Fraction]) -> list[int]:
    period = math.lcm(*(share.denominator for share in shares))
    if period <= MAX_PERIOD:
        return [int(share * period) for share in shares]
    if min(shares) * MAX_PERIOD < 1:
        raise ConfigError(f"a leaf of the blend has the share {float(min(shares)):.2g}, below 1 in {MAX_PERIOD}")
    weights = [math.floor(share * MAX_PERIOD) for share in shares]
    lacking = MAX_PERIOD - sum(weights)
    for leaf in sorted(range(len(shares)), key=lambda i: weights[i] - shares[i] * MAX_PERIOD)[:lacking]:
        weights[leaf] += 1
    logger.warning("the blend's weights are rounded to multiples of 1/%d: give them with fewer digits", MAX_PERIOD)
    return weights


def _free_draws(weights: Sequence[int]) -> np.ndarray:
    """[D + 1] int64: of the first s draws, those that no leaf must have had by then: s - sum of floor(w_i s / D)."""
    period = sum(weights)
    steps = np.arange(period + 1, dtype=np.int64)
    due: np.ndarray = steps.copy()
    for weight in weights:
        due -= steps * weight // period
    return due
