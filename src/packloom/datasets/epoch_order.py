"""A dataset's size and fingerprint, a seed and an epoch enter, the order of the samples leaves, cut into lanes."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from packloom.datasets.permutation import Permutation, make_permutation
from packloom.errors import ConfigError


@dataclass(frozen=True, kw_only=True)
class EpochOrder:
    """The order of one epoch: a pure function of its fields. Nothing in it depends on ranks, workers or processes.

    With shuffling: the dataset is cut into blocks of ``block_size`` consecutive samples; the blocks are permuted; that
    stream is cut into ``num_lanes`` lanes whose lengths differ by one sample at most; and within a lane each window of
    up to ``window`` samples is permuted. So a lane reads whole blocks (which lie together on disk) of a window before
    it goes on to the next, every epoch deals the blocks to the lanes anew, and any place is found in constant time.
    Permuted blocks and windows are full shuffles of their items (see ``permutation``).

    How strong that is (``python benchmarks/shuffle.py``; 1 million samples sorted by class, 1,000 a class and shard, 64
    lanes, global batches of 256): with the defaults the mean class of a batch varies as under a full shuffle (ratio
    0.99), and a batch holds 222 classes (226 under a full shuffle; 146 with shuffled shards and a buffer of 1,000 per
    lane). With a single lane the ratio is 2.1 and a batch holds 71, with a window of 4,096 beside it 1.4 and 154.

    Without shuffling the lanes take turns of ``turn`` consecutive samples: batches of ``turn`` samples, one lane after
    the other, are then the dataset in its own order.
    """

    total: int  # samples
    fingerprint: str
    seed: int = 0
    epoch: int = 0
    shuffle: bool = True
    num_lanes: int = 1
    block_size: int = 16
    window: int = 1024  # samples of one lane, in window / block_size places of the dataset
    turn: int = 1

    def __post_init__(self) -> None:
        for name, least in (
            ("total", 0),
            ("epoch", 0),
            ("num_lanes", 1),
            ("block_size", 1),
            ("window", 1),
            ("turn", 1),
        ):
            value = getattr(self, name)
            if value < least:
                raise ConfigError(f"{name} must be at least {least}, got {value}")

    def lane_length(self, lane: int = 0) -> int:
        """The samples of a lane; over all lanes they add up to ``total``."""
        self._check_lane(lane)
        if self.shuffle:
            start, stop = self._lane_bounds(lane)
            return stop - start
        rounds, rest = divmod(self.total, self.turn * self.num_lanes)
        return rounds * self.turn + min(max(rest - lane * self.turn, 0), self.turn)

    def at(self, cursor: int, lane: int = 0) -> int:
        """The dataset position that a lane reads at place ``cursor``, in constant time; raises IndexError."""
        length = self.lane_length(lane)
        if not 0 <= cursor < length:
            raise IndexError(f"place {cursor} is not in 0..{length - 1} of lane {lane}")
        if not self.shuffle:
            turns, place = divmod(cursor, self.turn)
            return (turns * self.num_lanes + lane) * self.turn + place
        number, start, stop = self._window(cursor, length)
        place = self._lane_bounds(lane)[0] + start + self._window_order(lane, number, stop - start).at(cursor - start)
        end, lacking = self._short_block
        block, place = divmod(place if place < end else place + lacking, self.block_size)
        return self._block_order.at(block) * self.block_size + place

    def iterate(self, lane: int = 0, start: int = 0) -> Iterator[int]:
        """``at(start)``, ``at(start + 1)``, ... to the end of the lane; a window at a time, so it begins at once."""
        length = self.lane_length(lane)
        if not 0 <= start <= length:
            raise IndexError(f"place {start} is not in 0..{length} of lane {lane}")
        while start < length:
            if not self.shuffle:
                yield self.at(start, lane)
                start += 1
                continue
            number, first, stop = self._window(start, length)
            places = self._window_order(lane, number, stop - first).at_many(np.arange(start - first, stop - first))
            yield from self._blocks_to_positions(self._lane_bounds(lane)[0] + first + places).tolist()
            start = stop

    def _check_lane(self, lane: int) -> None:
        if not 0 <= lane < self.num_lanes:
            raise IndexError(f"lane {lane} is not in 0..{self.num_lanes - 1}")

    def _lane_bounds(self, lane: int) -> tuple[int, int]:
        return self.total * lane // self.num_lanes, self.total * (lane + 1) // self.num_lanes

    def _window(self, cursor: int, length: int) -> tuple[int, int, int]:
        """(number, first place, place behind the last) of the window around a place. Windows are of equal size."""
        count = -(-length // self.window)
        number = ((cursor + 1) * count - 1) // length
        return number, length * number // count, length * (number + 1) // count

    def _window_order(self, lane: int, number: int, size: int) -> Permutation:
        parts = (self.fingerprint, self.seed, self.epoch, "window", self.num_lanes, lane, number)
        return make_permutation(size, *parts)

    @cached_property
    def _block_order(self) -> Permutation:
        num_blocks = -(-self.total // self.block_size)
        return make_permutation(num_blocks, self.fingerprint, self.seed, self.epoch, "blocks")

    @cached_property
    def _short_block(self) -> tuple[int, int]:
        """Where the dataset's last block ends in the stream of permuted blocks, and how many samples it lacks."""
        lacking = self._block_order.size * self.block_size - self.total
        place = self._block_order.place_of(self._block_order.size - 1)
        return (place + 1) * self.block_size - lacking, lacking

    def _blocks_to_positions(self, stream: np.ndarray) -> np.ndarray:
        """[K] places in the stream of permuted blocks → [K] dataset positions."""
        end, lacking = self._short_block
        blocks, places = np.divmod(np.where(stream < end, stream, stream + lacking), self.block_size)
        needed, inverse = np.unique(blocks, return_inverse=True)
        return self._block_order.at_many(needed)[inverse] * self.block_size + places
