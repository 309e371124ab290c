"""How many lanes there are and who makes which batch: counts of ranks and workers go in, numbers come out; pure.

Global batch ``g`` is slot ``g // L`` of lane ``g % L``. Rank ``r``'s batch number ``j`` since a start at global batch
``G`` is ``G + j * dp_size + r``, and worker ``j % W`` of its W workers makes it. None of that reaches into a lane, so
the sequence of global batches is the same for every number of ranks and workers.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from packloom.errors import ConfigError

#: Pairs and lane counts that an error suggests.
_NUM_SUGGESTIONS = 4


def count_lanes(total: int, *, num_lanes: int, min_samples: int) -> int:
    """The lanes that a dataset of ``total`` samples is cut into: at most ``num_lanes``, always a divisor of it.

    Few samples in many lanes would fill packs badly and leave long tails. So each lane has ``min_samples`` at least,
    or there is but one. It depends on the dataset alone.
    """
    return max(n for n in _divisors(num_lanes) if n == 1 or n * min_samples <= total)


def check_cluster(num_lanes: int, *, dp_size: int, num_workers: int) -> None:
    """Refuse ranks and workers that cannot share the lanes evenly; the ConfigError names the nearest that can."""
    workers = max(1, num_workers)
    slots = dp_size * workers
    if num_lanes % slots == 0:
        return
    pairs = [(dp, slot // dp) for slot in _divisors(num_lanes) for dp in _divisors(slot)]
    pairs.sort(key=lambda pair: (abs(math.log(pair[0] / dp_size)) + abs(math.log(pair[1] / workers)), pair))
    near = ", ".join(f"({dp}, {count})" for dp, count in pairs[:_NUM_SUGGESTIONS])
    multiples = [slots * (num_lanes // slots + step) for step in (0, 1)]
    lanes = " or ".join(str(count) for count in multiples if count)
    raise ConfigError(
        f"dp_size {dp_size} times num_workers {num_workers} is {slots}, which does not divide num_lanes {num_lanes}."
        f" Nearest possible (dp_size, num_workers): {near}. Or set num_lanes={lanes}, on all ranks and from the start:"
        " the order of a large dataset depends on it"
    )


@dataclass(frozen=True, kw_only=True, slots=True)
class LaneGrid:
    """The lanes and this rank's place. ``num_workers`` counts this process as one where there are no workers.

    Where there are fewer lanes than makers, several of them share a lane: each encodes all its samples, which is
    cheap, and loads the media of its own batches only.
    """

    num_lanes: int
    dp_rank: int = 0
    dp_size: int = 1
    num_workers: int = 1

    @property
    def round_size(self) -> int:
        """Global batches per round. In one round each lane has as many slots as any other, and so has each rank."""
        return math.lcm(self.num_lanes, self.dp_size)

    @property
    def sees_all_lanes(self) -> bool:
        """Whether this rank makes batches of every lane."""
        return math.gcd(self.num_lanes, self.dp_size) == 1

    def own_lanes(self, start: int) -> list[int]:
        """The lanes that this rank makes batches of, if it starts at global batch ``start``."""
        step = math.gcd(self.num_lanes, self.dp_size)
        return list(range((start + self.dp_rank) % step, self.num_lanes, step))

    def worker_batches(self, start: int, worker: int) -> tuple[int, int]:
        """(first global batch, step) of a worker."""
        return start + self.dp_rank + self.dp_size * worker, self.dp_size * self.num_workers

    def is_boundary(self, batch: int) -> bool:
        """Whether a round begins at this global batch.

        Rounds begin at multiples of the round size, shifted where a run on another number of ranks stopped between two.
        """
        return (batch - batch % self.dp_size) % self.round_size == 0

    def next_boundary(self, batch: int, start: int) -> int:
        """The first boundary behind a global batch of a run that started at ``start``."""
        shift = start % self.dp_size
        return ((batch - shift) // self.round_size + 1) * self.round_size + shift

    def slots_before(self, batch: int, lane: int) -> int:
        """The slots of a lane among the global batches before this one."""
        return max(0, -(-(batch - lane) // self.num_lanes))

    def slot_needed(self, boundary: int, lane: int, *, whole_round: bool) -> int:
        """The slot that a lane must have for the round at ``boundary`` to take place.

        That is its last slot of the round where the whole round must be there, else its first.
        """
        if whole_round:
            return self.slots_before(boundary + self.round_size, lane) - 1
        return self.slots_before(boundary, lane)


def _divisors(number: int) -> list[int]:
    return [n for n in range(1, number + 1) if number % n == 0]
