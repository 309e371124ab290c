"""The packs of this rank's lanes go in; those of all lanes come out, window by window, in an order of even steps."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import count, islice
from typing import Any

import numpy as np
import torch.distributed as dist

from packloom.datasets.permutation import make_permutation
from packloom.datasets.policy import SkipRecord
from packloom.loader.balance_parts import PartStream, WindowPart
from packloom.loader.delivery import picklable
from packloom.loader.distribution import Place
from packloom.loader.lane import LaneState, MeasuredPack
from packloom.loader.processes import WorkerTraceback, run_workers
from packloom.loader.stages import Stages, make_policy
from packloom.loader.worker import Plan, Start
from packloom.packing.balance import balanced_order


@dataclass(frozen=True, kw_only=True)
class Window:
    """The packs that ``size`` places of the global sequence have, reordered; fewer only where a pass ends."""

    number: int
    packs: Sequence[MeasuredPack]
    states: Mapping[int, LaneState]  # of this rank's lanes before it
    skips: Sequence[SkipRecord] = ()
    seconds: Mapping[str, float] = field(default_factory=dict)
    waits: Mapping[int, int] = field(default_factory=dict)


class Windows:
    """The windows of a pass from the one on that a state names; ends behind the last pack.

    Each rank follows the lanes that are its own and tells the others their packs by lane, draws and lengths: one
    message a window. Where it cannot tell them, or ranks outnumber lanes, it follows all lanes itself.
    """

    def __init__(self, plan: Plan, place: Place, start: Start) -> None:
        lanes, rank, size = plan.grid.num_lanes, plan.grid.dp_rank, plan.grid.dp_size
        self._plan = plan
        self._groups = place.groups if lanes >= size else ()
        self._slots = -(-plan.config.packing.balance_window // lanes)
        self.size = self._slots * lanes
        #: The window to begin with.
        self.first = max((state["slots"] for state in start.lanes.values()), default=0) // self._slots
        own = range(rank, lanes, size)
        self._stream = PartStream(
            plan,
            start,
            lanes=own if self._groups else range(lanes),
            reported=own,
            slots=self._slots,
            first=self.first,
        )
        #: What was skipped before this rank's failure.
        self.lost: list[SkipRecord] = []
        self._cost = Stages(plan.encoder, plan.config, make_policy(plan.config.loader)).step_cost
        self._key = (plan.feed.fingerprint, plan.config.source.seed, start.pass_number, "balance")

    def __iter__(self) -> Iterator[Window]:
        """Raises the PackloomError of any rank on every rank."""
        loader, seed = self._plan.config.loader, self._plan.config.source.seed
        # Lengths are a small part of the work, but a batch waits for a whole window of them.
        num_workers = -(-loader.num_workers // 2)
        parts = run_workers(self._stream, replace(loader, num_workers=num_workers), seed=seed)
        for number in count(self.first):
            window = self._window(number, list(islice(parts, max(1, num_workers))))
            yield window
            if not window.packs:
                return

    def _window(self, number: int, parts: Sequence[WindowPart]) -> Window:
        failed = [part for part in parts if part.failure is not None]
        self.lost = [record for part in failed for record in part.skips]
        failure = picklable(failed[0]) if failed else None
        own = [pack for part in parts for pack in part.packs]
        packs = self._exchange(own, failure)
        return Window(
            number=number,
            packs=self._ordered(number, packs),
            states={lane: state for part in parts for lane, state in part.states.items()},
            skips=[record for part in parts for record in part.skips],
            seconds=sum_seconds([part.seconds for part in parts]),
            waits={lane: wait for part in parts for lane, wait in part.waits.items()},
        )

    def _exchange(self, own: list[MeasuredPack], failure: WindowPart | None) -> list[MeasuredPack]:
        told = None if failure is None else (failure.failure, failure.traceback)
        found: list[Any] = [(own, told)]
        for group in self._groups:
            gathered: list[Any] = [None] * dist.get_world_size(group)
            dist.all_gather_object(gathered, found, group=group)
            found = [item for items in gathered for item in items]
        errors = [told, *(other for _, other in found)]
        for error in errors:
            if error is not None:
                raise error[0] from WorkerTraceback(error[1])
        return [pack for packs, _ in found for pack in packs]

    def _ordered(self, number: int, packs: list[MeasuredPack]) -> list[MeasuredPack]:
        """The same on every rank, however the packs were gathered."""
        packs = sorted(packs, key=lambda pack: (pack.slot, pack.lane))
        if not packs:
            return []
        costs = np.array([self._pack_cost(pack) for pack in packs], dtype=np.int64)
        keys = make_permutation(costs.size, *self._key, number).at_many(np.arange(costs.size))
        return [packs[place] for place in balanced_order(costs, keys, group=self.size)]

    def _pack_cost(self, pack: MeasuredPack) -> int:
        return int(self._cost.of(np.array(pack.tokens), np.array(pack.patches)).sum())


def sum_seconds(each: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """Time per stage, summed."""
    total: dict[str, float] = {}
    for seconds in each:
        for stage, spent in seconds.items():
            total[stage] = total.get(stage, 0.0) + spent
    return total
