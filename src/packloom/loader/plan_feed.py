"""A plan of packs and the feed that it was made of go in; the samples of any pack of any pass come out."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

import numpy as np
from numpy.typing import NDArray

from packloom.datasets.permutation import make_permutation
from packloom.errors import ReadError
from packloom.loader.feed import LaneFeed
from packloom.loader.plan_file import EpochPacks, PackPlan
from packloom.packing.balance import balanced_order
from packloom.packing.cost import StepCost
from packloom.types import RawSample

#: Orders that are kept: two of the epochs at hand.
_KEPT_ORDERS = 2


@dataclass(frozen=True, kw_only=True, slots=True)
class PlannedPack:
    """Draws ``start`` .. ``stop`` share a pack."""

    start: int
    stop: int
    tokens: tuple[int, ...]  # of each draw
    patches: tuple[int, ...]


class PlanFeed:
    """One lane, whose draws are the rows of the plan. Epochs beyond the planned ones repeat their packs in new orders.

    The order of an epoch's packs is a function of plan and epoch, and of how many packs came before it in its pass.
    """

    num_lanes = 1

    def __init__(self, inner: LaneFeed, plan: PackPlan) -> None:
        self.plan = plan
        self._inner = inner
        self._row_starts = [0, *accumulate(plan.num_rows)]
        self._rounds: int = 1 + max(epoch["last_round"] for epoch in plan.header["epochs"])
        self._orders: dict[tuple[int, int], NDArray[np.int64]] = {}

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_orders": {}}

    def prepare(self, first_epoch: int, slot: int) -> None:
        """Read the epoch of a pack, so that processes which are forked now share it."""
        self.pack(first_epoch, slot)

    # -- packs ----------------------------------------------------------------------------------------------------

    def count_packs(self, first_epoch: int, num_epochs: int) -> int:
        """The packs of so many epochs."""
        numbers = self.plan.num_packs
        rounds, rest = divmod(num_epochs, len(numbers))
        return rounds * sum(numbers) + sum(numbers[(first_epoch + step) % len(numbers)] for step in range(rest))

    def pack(self, first_epoch: int, slot: int) -> PlannedPack:
        """Pack number ``slot`` of a pass that begins with this epoch."""
        cycle = self.count_packs(first_epoch, self.plan.num_epochs)
        rounds, place = divmod(slot, cycle)
        epoch, before = first_epoch + rounds * self.plan.num_epochs, rounds * cycle
        while place >= (number := self.plan.num_packs[epoch % self.plan.num_epochs]):
            epoch, place, before = epoch + 1, place - number, before + number
        packs = self.plan.epoch(epoch % self.plan.num_epochs)
        pack = int(self._order(epoch, before, packs)[place])
        start, stop = packs.bounds[pack : pack + 2].tolist()
        first = self._first_draw(epoch)
        return PlannedPack(
            start=first + start,
            stop=first + stop,
            tokens=tuple(packs.tokens[start:stop].tolist()),
            patches=tuple(packs.patches[start:stop].tolist()),
        )

    def costs(self, epoch: int, before: int = 0) -> NDArray[np.int64]:
        """[P] the costs of an epoch's packs in the order in which they come, ``before`` others of their pass first."""
        packs = self.plan.epoch(epoch % self.plan.num_epochs)
        return self._pack_costs(packs)[self._order(epoch, before, packs)]

    def _order(self, epoch: int, before: int, packs: EpochPacks) -> NDArray[np.int64]:
        group = int(self.plan.header["balance_ranks"])
        lead = -before % group
        if (epoch, lead) not in self._orders:
            while len(self._orders) >= _KEPT_ORDERS:
                del self._orders[next(iter(self._orders))]
            costs = self._pack_costs(packs)
            keys = make_permutation(packs.num_packs, self.plan.header["digest"], epoch).at_many(np.arange(costs.size))
            self._orders[epoch, lead] = balanced_order(costs, keys, group=group, lead=lead)
        return self._orders[epoch, lead]

    def _pack_costs(self, packs: EpochPacks) -> NDArray[np.int64]:
        names = ("linear", "attention", "vision")
        cost = StepCost(**{name: self.plan.header["settings"][f"cost_{name}"] for name in names})
        sums = np.concatenate([[0], np.cumsum(cost.of(packs.tokens, packs.patches))])
        return np.diff(sums[packs.bounds])

    # -- draws ----------------------------------------------------------------------------------------------------

    @property
    def fingerprint(self) -> str:
        return self._inner.fingerprint

    @property
    def num_samples(self) -> int:
        return self._inner.num_samples

    def epoch_length(self, lane: int) -> int:
        return self.plan.num_rows[0]

    def epoch_of(self, lane: int, draw: int) -> int:
        """That of the leaf, so that a sample which comes twice in an epoch is not the same twice."""
        epoch, row = self._locate(draw)
        cycles, number = divmod(epoch, self.plan.num_epochs)
        return cycles * self._rounds + int(self.plan.epoch(number).rounds[row])

    def sample_of(self, lane: int, draw: int) -> int:
        epoch, row = self._locate(draw)
        return int(self.plan.epoch(epoch % self.plan.num_epochs).samples[row])

    def samples_from(self, lane: int, draw: int) -> Iterator[int]:
        while True:
            yield self.sample_of(lane, draw)
            draw += 1

    def _locate(self, draw: int) -> tuple[int, int]:
        """(epoch, row of the plan) of a draw."""
        cycles, rest = divmod(draw, self._row_starts[-1])
        number = bisect_right(self._row_starts, rest) - 1
        return cycles * self.plan.num_epochs + number, rest - self._row_starts[number]

    def _first_draw(self, epoch: int) -> int:
        cycles, number = divmod(epoch, self.plan.num_epochs)
        return cycles * self._row_starts[-1] + self._row_starts[number]

    # -- samples, which are those of the feed below -----------------------------------------------------------------

    def read(self, sample: int) -> RawSample:
        return self._inner.read(sample)

    def read_parts(self, samples: Sequence[int], parts: Sequence[str]) -> list[RawSample | ReadError]:
        return self._inner.read_parts(samples, parts)

    def place_of(self, sample: int) -> str:
        return self._inner.place_of(sample)

    def offset_of(self, sample: int) -> int | None:
        return self._inner.offset_of(sample)

    def leaf_of(self, sample: int) -> str:
        return self._inner.leaf_of(sample)
