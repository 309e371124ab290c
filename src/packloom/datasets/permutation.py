"""A size and a key enter, a permutation of 0..size-1 leaves, which gives any item and its place in constant time."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from packloom.errors import ConfigError
from packloom.rng import derive_seed

_MASK = (1 << 64) - 1
#: Each changes one half by the other. Fewer leave patterns in small permutations: tests/datasets/test_permutation.py.
NUM_ROUNDS = 16
#: The finaliser of SplitMix64: Steele, Lea, Flood, "Fast splittable pseudorandom number generators", 2014.
_MIX_1, _MIX_2 = 0xBF58476D1CE4E5B9, 0x94D049BB133111EB


@dataclass(frozen=True, slots=True)
class Permutation:
    """A Feistel network over the next power of two, walked until it falls below ``size`` (cycle walking).

    Black, Rogaway, "Ciphers with arbitrary finite domains", 2002. Less than two steps of the walk are needed on
    average. Only whole numbers of 64 bits are used, so that every machine and version gives the same result.
    """

    size: int
    keys: tuple[int, ...]  # one of 64 bits per round

    def at(self, place: int) -> int:
        """The item at a place of 0..size-1."""
        if not 0 <= place < self.size:
            raise IndexError(f"place {place} is not in 0..{self.size - 1}")
        place = self._step(place)
        while place >= self.size:
            place = self._step(place)
        return place

    def place_of(self, item: int) -> int:
        """The place of an item: the inverse of ``at``."""
        if not 0 <= item < self.size:
            raise IndexError(f"item {item} is not in 0..{self.size - 1}")
        item = self._step_back(item)
        while item >= self.size:
            item = self._step_back(item)
        return item

    def at_many(self, places: np.ndarray) -> np.ndarray:
        """[K] int64 → [K] int64: ``at`` of each, all of them in 0..size-1."""
        items = self._steps(places.astype(np.uint64))
        while (outside := items >= self.size).any():
            items[outside] = self._steps(items[outside])
        return items.astype(np.int64)

    def _halves(self) -> tuple[int, int]:
        """The bits of the lower and of the upper half."""
        bits = max(1, (self.size - 1).bit_length())
        return bits - bits // 2, bits // 2

    def _step(self, value: int) -> int:
        low_bits, high_bits = self._halves()
        low, high = value & ((1 << low_bits) - 1), value >> low_bits
        for number, key in enumerate(self.keys):
            if number % 2:
                high ^= _mix(low ^ key) & ((1 << high_bits) - 1)
            else:
                low ^= _mix(high ^ key) & ((1 << low_bits) - 1)
        return high << low_bits | low

    def _step_back(self, value: int) -> int:
        low_bits, high_bits = self._halves()
        low, high = value & ((1 << low_bits) - 1), value >> low_bits
        for number, key in reversed(list(enumerate(self.keys))):
            if number % 2:
                high ^= _mix(low ^ key) & ((1 << high_bits) - 1)
            else:
                low ^= _mix(high ^ key) & ((1 << low_bits) - 1)
        return high << low_bits | low

    def _steps(self, values: np.ndarray) -> np.ndarray:
        low_bits, high_bits = self._halves()
        low_mask, high_mask = np.uint64((1 << low_bits) - 1), np.uint64((1 << high_bits) - 1)
        low, high = values & low_mask, values >> np.uint64(low_bits)
        for number, key in enumerate(self.keys):
            if number % 2:
                high ^= _mix_many(low ^ np.uint64(key)) & high_mask
            else:
                low ^= _mix_many(high ^ np.uint64(key)) & low_mask
        joined: np.ndarray = high << np.uint64(low_bits) | low
        return joined


def make_permutation(size: int, *parts: int | str) -> Permutation:
    """The permutation of 0..size-1 that the parts name, a full shuffle. Raises ConfigError below size 1."""
    if size < 1:
        raise ConfigError(f"a permutation needs at least one item, got {size}")
    seed = derive_seed(*parts)
    return Permutation(size, tuple(_mix(seed + (number + 1) * 0x9E3779B97F4A7C15) for number in range(NUM_ROUNDS)))


def _mix(value: int) -> int:
    value &= _MASK
    value = ((value ^ (value >> 30)) * _MIX_1) & _MASK
    value = ((value ^ (value >> 27)) * _MIX_2) & _MASK
    return value ^ (value >> 31)


def _mix_many(values: np.ndarray) -> np.ndarray:
    values = (values ^ (values >> np.uint64(30))) * np.uint64(_MIX_1)  # wraps at 64 bits, as meant
    values = (values ^ (values >> np.uint64(27))) * np.uint64(_MIX_2)
    mixed: np.ndarray = values ^ (values >> np.uint64(31))
    return mixed
