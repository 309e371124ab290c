"""A plan goes in; this rank's batches come out, from packs of all lanes in an order in which steps are even."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from traceback import format_exc
from typing import Any

from torch.utils.data import Dataset

from packloom.datasets.policy import SkipRecord
from packloom.errors import PackloomError
from packloom.loader.balance_windows import Window, Windows, sum_seconds
from packloom.loader.delivery import Delivery
from packloom.loader.distribution import Place
from packloom.loader.lane import LaneState, MeasuredPack
from packloom.loader.lane_engine import LaneEngine
from packloom.loader.processes import run_workers, worker_place
from packloom.loader.worker import LaneWorker, Plan, Start


@dataclass(frozen=True, kw_only=True)
class PackOrder:
    """A batch to be made: its step, and the pack; None for one that only fills the last step of a pass."""

    step: int  # the first global batch of the step
    pack: MeasuredPack | None


@dataclass(frozen=True, kw_only=True)
class PackDelivery(Delivery):
    """A delivery for a step; without one (-1) it only reports."""

    step: int = -1


class PackMaker(Dataset[PackDelivery]):
    """Makes the batch of any pack, in a worker process or in this one. Keeps nothing from one to the next."""

    def __init__(self, plan: Plan, start: Start) -> None:
        plan.aux.prepare()
        self._plan = plan
        self._start = start
        self._worker: LaneWorker | None = None

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_worker": None}

    def __getitem__(self, order: PackOrder) -> PackDelivery:
        worker = self._worker = self._worker or LaneWorker(self._plan, self._start, worker_place()[0])
        lane, draws = (0, ()) if order.pack is None else (order.pack.lane, order.pack.draws)
        try:
            batch, num_fillers, skips = worker.make(lane, draws)
        except PackloomError as error:
            return PackDelivery(step=order.step, failure=error, traceback=format_exc(), skips=worker.take_records())
        return PackDelivery(
            step=order.step,
            batch=batch,
            num_filler_rows=num_fillers,
            skips=skips,
            seconds=worker.take_seconds(),
        )


@dataclass(kw_only=True)
class _Step:
    """What belongs to a step beside its batches: it counts once the step is consumed."""

    lanes: Mapping[int, LaneState] = field(default_factory=dict)  # to resume from behind it
    skips: list[SkipRecord] = field(default_factory=list)
    seconds: Mapping[str, float] = field(default_factory=dict)
    waits: Mapping[int, int] = field(default_factory=dict)

    def add(self, window: Window) -> None:
        self.skips += window.skips
        self.seconds = sum_seconds([self.seconds, window.seconds])
        self.waits = {**self.waits, **window.waits}


class BalancedEngine(LaneEngine):
    """As LaneEngine, but a rank makes packs of any lane: those that its place in the reordered window gives it.

    A state holds the lanes as they stood before the window that was under way; its first packs are passed over. Where a
    pass ends, windows have fewer packs, and it holds the lanes before the first of these.
    """

    def __init__(self, plan: Plan, place: Place) -> None:
        super().__init__(plan, place)
        self._pulled: PackDelivery | None = None
        self._steps: dict[int, _Step] = {}  # that were begun and not consumed

    def _own_lanes(self) -> list[int]:
        lanes, rank, size = self._plan.grid.num_lanes, self._plan.grid.dp_rank, self._plan.grid.dp_size
        return list(range(rank, lanes, size) if lanes >= size else range(lanes))

    def _round_takes_place(self) -> bool:
        if self._run is None:
            self._steps = {}
            self._run = self._deliveries_from(self._at)
        try:
            self._pulled = next(self._run, None)
        except BaseException:
            self._run = None  # an exception ends it
            raise
        return self._pulled is not None

    def _next(self) -> PackDelivery:
        delivery = self._pulled
        if delivery is None:
            raise PackloomError("no batch was looked for")
        if delivery.failure is not None:
            self._run = None
            return delivery
        if delivery.step < 0:
            return delivery
        step = self._steps.pop(delivery.step)
        self._at = replace(self._at, batch=delivery.step + self._plan.grid.dp_size, lanes=step.lanes)
        return replace(
            delivery,
            skips=[*step.skips, *delivery.skips],
            seconds=sum_seconds([step.seconds, delivery.seconds]),
            waits=step.waits,
        )

    def _deliveries_from(self, start: Start) -> Iterator[PackDelivery]:
        config = self.config
        orders = _Orders(Windows(self._plan, self._place, start), self._plan, start, self._steps)
        maker = PackMaker(self._plan, start)
        yield from run_workers(maker, config.loader, seed=config.source.seed, orders=orders)
        yield orders.last


class _Orders:
    """The packs that this rank makes, step by step; each window is looked for on all ranks at the same step."""

    def __init__(self, windows: Windows, plan: Plan, start: Start, steps: dict[int, _Step]) -> None:
        self._windows = windows
        self._rank, self._size = plan.grid.dp_rank, plan.grid.dp_size
        self._drops = plan.needs_whole_rounds
        self._start = start
        self._steps = steps
        #: What is left to tell behind the last step.
        self.last = PackDelivery()

    def __iter__(self) -> Iterator[PackOrder]:
        try:
            yield from self._orders()
        except PackloomError as error:  # told behind the batches that were made before it came up
            self.last = PackDelivery(failure=error, traceback=format_exc(), skips=self._windows.lost)

    def _orders(self) -> Iterator[PackOrder]:
        windows = iter(self._windows)
        ahead: deque[tuple[MeasuredPack, Mapping[int, LaneState]]] = deque()  # with the lanes to resume from
        first, step = self._windows.first * self._windows.size, self._start.batch  # first: the place of ahead[0]
        anchor: Mapping[int, LaneState] = {}
        is_whole = True
        while True:
            news = _Step()
            while first + len(ahead) < step + self._size and (window := next(windows, None)) is not None:
                if first + len(ahead) >= self._start.batch:  # else it was told of before the start
                    news.add(window)
                anchor = window.states if is_whole else anchor
                is_whole = len(window.packs) == self._windows.size
                ahead.extend((pack, anchor) for pack in window.packs)
            while ahead and first < step:  # consumed before the start
                ahead.popleft()
                first += 1
            own = [ahead.popleft() for _ in range(min(self._size, len(ahead)))]
            if not own or (self._drops and len(own) < self._size):
                self.last = PackDelivery(skips=news.skips, seconds=news.seconds, waits=news.waits)
                return
            news.lanes = own[0][1]
            self._steps[step] = news
            yield PackOrder(step=step, pack=own[self._rank][0] if self._rank < len(own) else None)
            first, step = first + len(own), step + self._size
