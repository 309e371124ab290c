"""A plan and the states of lanes go in; one worker's batches come out, each with the state of its lane behind it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import count
from traceback import format_exc

from torch.utils.data import IterableDataset

from packloom.config import DataConfig
from packloom.datasets.policy import ErrorPolicy
from packloom.errors import PackloomError, ReadError, SampleError, TooManyErrors
from packloom.loader.delivery import LaneDelivery, counts_by_code, no_good_samples
from packloom.loader.feed import LaneFeed
from packloom.loader.filler import FillerMaker, discount_fillers
from packloom.loader.lane import Lane, LaneState, make_span
from packloom.loader.lanes import LaneGrid
from packloom.loader.processes import handed_over, worker_place
from packloom.loader.stages import Encoder, Stages
from packloom.packing import PackFunction
from packloom.types import Batch, Row


@dataclass(frozen=True, kw_only=True)
class Plan:
    """All that a worker needs to know; it pickles where the encoder does."""

    config: DataConfig  # with the pack length filled in
    feed: LaneFeed
    encoder: Encoder
    grid: LaneGrid
    pack_function: PackFunction | None = None

    @property
    def is_endless(self) -> bool:
        return self.config.source.epochs is None

    @property
    def needs_whole_rounds(self) -> bool:
        """Whether a round takes place only if every lane has all its slots of it, or else if any has one."""
        return self.config.loader.tail == "drop"

    def make_lane(self, number: int, pass_number: int, stages: Stages, state: LaneState | None) -> Lane:
        """A lane as it stands in a pass: at its state, or at its beginning."""
        span = make_span(self.config, self.feed.epoch_length(number), pass_number)
        lane = Lane(number, self.feed, stages, span=span, pack_function=self.pack_function)
        if state is not None:
            lane.load_state_dict(state)
        return lane


@dataclass(frozen=True, kw_only=True)
class Start:
    """Where a run starts."""

    pass_number: int
    batch: int  # the first global batch that was not consumed in this pass
    lanes: Mapping[int, LaneState]  # of this rank; a lane without state is at its beginning


class LaneStream(IterableDataset[LaneDelivery]):
    """What runs in a worker process, or in this one without workers."""

    def __init__(self, plan: Plan, start: Start) -> None:
        super().__init__()
        self.plan = plan
        self.start = start

    def __iter__(self) -> Iterator[LaneDelivery]:
        number, _ = worker_place()
        return handed_over(LaneWorker(self.plan, self.start, number).deliveries())


class LaneWorker:
    """Makes every batch that is this worker's, in order, without end: the main process knows when a pass is over."""

    def __init__(self, plan: Plan, start: Start, number: int) -> None:
        settings = plan.config.loader
        self._plan = plan
        self._start = start
        self._number = number
        self._policy = ErrorPolicy(on_error=settings.on_error, max_consecutive=settings.max_consecutive_errors)
        self._stages = Stages(plan.encoder, plan.config, self._policy)
        self._fillers = FillerMaker(plan.feed, self._stages)
        self._lanes: dict[int, Lane] = {}

    def deliveries(self) -> Iterator[LaneDelivery]:
        """A PackloomError ends them and travels in the last one; other exceptions are bugs and are raised."""
        first, step = self._plan.grid.worker_batches(self._start.batch, self._number)
        for batch in count(first, step):
            lane = self._lane(batch % self._plan.grid.num_lanes)
            try:
                delivery = self._deliver(lane, batch // self._plan.grid.num_lanes)
            except PackloomError as error:
                yield self._failed(lane, error)
                return
            try:
                has_next = self._has_next(lane, batch)
            except PackloomError as error:  # found behind this batch, which is good
                yield delivery
                yield self._failed(lane, error)
                return
            lane.settle()
            yield replace(delivery, has_next=has_next, skips=delivery.skips + lane.take_records(lane.slots - 1))

    def _lane(self, number: int) -> Lane:
        if number not in self._lanes:
            state = self._start.lanes.get(number)
            self._lanes[number] = self._plan.make_lane(number, self._start.pass_number, self._stages, state)
        return self._lanes[number]

    def _deliver(self, lane: Lane, slot: int) -> LaneDelivery:
        while lane.slots < slot:
            lane.skip()
        draws = lane.take()
        rows = self._stages.load(lane.samples(draws)) if draws is not None else []
        if draws is not None and self._plan.is_endless:
            rows += self._replacements(lane, draws, self._num_missing(rows))
        missing = self._num_missing(rows)
        # A single rank keeps step with nobody, so it needs no batch of fillers only.
        batch = self._collated(rows, missing) if rows or self._plan.grid.dp_size > 1 else None
        return LaneDelivery(
            lane=lane.number,
            state=lane.state_dict(),
            batch=batch,
            num_filler_rows=missing if batch is not None else 0,
            skips=lane.take_records(slot) + self._policy.take_records(),
        )

    def _has_next(self, lane: Lane, batch: int) -> bool:
        if self._plan.is_endless:
            return True
        grid = self._plan.grid
        boundary = grid.next_boundary(batch, self._start.batch)
        return lane.has_slot(grid.slot_needed(boundary, lane.number, whole_round=self._plan.needs_whole_rounds))

    def _failed(self, lane: Lane, error: PackloomError) -> LaneDelivery:
        skips = [record for each in self._lanes.values() for record in each.take_all_records()]
        skips += self._policy.take_records()
        return LaneDelivery(lane=lane.number, state={}, skips=skips, failure=error, traceback=format_exc())

    def _num_missing(self, rows: list[Row]) -> int:
        """The rows that a batch lacks: any number of padded ones, but of a pack only the whole."""
        settings = self._plan.config.loader
        return settings.micro_batch_size - len(rows) if settings.layout == "padded" else int(not rows)

    def _replacements(self, lane: Lane, draws: list[int], num_rows: int) -> list[Row]:
        """Rows for those whose media turned out bad, of the samples that stand behind them in the dataset.

        These come once more than their turn. Finite passes, where that would falsify a count, get fillers.
        """
        rows: list[Row] = []
        feed = self._plan.feed
        last, epoch = feed.sample_of(lane.number, draws[-1]), feed.epoch_of(lane.number, draws[-1])
        for step in range(feed.num_samples):
            if len(rows) == num_rows:
                return rows
            number = (last + 1 + step) % feed.num_samples
            try:
                rows += self._stages.load([self._stages.encode(feed.read(number), epoch=epoch)])
            except (ReadError, SampleError) as error:
                self._policy.skip(error, stage="encode", source=feed.place_of(number))
        if len(rows) < num_rows:
            counts = counts_by_code(self._policy)
            raise TooManyErrors(no_good_samples(counts.total(), counts))
        return rows

    def _collated(self, rows: list[Row], num_fillers: int) -> Batch:
        batch = self._stages.collate([*rows, *(self._fillers.row() for _ in range(num_fillers))])
        return discount_fillers(batch, num_fillers)
