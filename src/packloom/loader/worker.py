"""A plan and the states of lanes go in; one worker's batches come out, each with the state of its lane behind it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import count, islice
from traceback import format_exc

from torch.utils.data import IterableDataset

from packloom.config import DataConfig
from packloom.datasets.aux_media import AuxLibrary
from packloom.datasets.policy import SkipRecord, Stage
from packloom.errors import PackloomError, ReadError, SampleError, TooManyErrors
from packloom.loader.delivery import LaneDelivery, counts_by_code, no_good_samples
from packloom.loader.feed import LaneFeed
from packloom.loader.filler import FillerMaker, discount_fillers
from packloom.loader.lane import Lane, LaneState, make_span
from packloom.loader.lanes import LaneGrid
from packloom.loader.plan_feed import PlanFeed
from packloom.loader.plan_lane import PlannedLane
from packloom.loader.processes import worker_place
from packloom.loader.sample_store import SampleStore
from packloom.loader.source_counts import count_sources
from packloom.loader.stages import Encoder, Stages, make_policy
from packloom.packing import PackerFactory, PackFunction
from packloom.types import Batch, EncodedSample, Row


@dataclass(frozen=True, kw_only=True)
class Plan:
    """All that a worker needs to know; it pickles where the encoder does."""

    config: DataConfig  # with the pack length filled in
    feed: LaneFeed
    encoder: Encoder
    grid: LaneGrid
    pack_function: PackFunction | PackerFactory | None = None
    aux: AuxLibrary = field(default_factory=AuxLibrary)  # what the samples of the feed name media of
    planned: PlanFeed | None = None  # the feed itself, where a plan file says what shares a pack

    @property
    def is_endless(self) -> bool:
        return self.config.source.epochs is None

    @property
    def needs_whole_rounds(self) -> bool:
        """Whether a round takes place only if every lane has all its slots of it, or else if any has one."""
        return self.config.loader.tail == "drop"

    def make_lane(self, number: int, pass_number: int, stages: Stages, state: LaneState | None) -> Lane | PlannedLane:
        """A lane as it stands in a pass: at its state, or at its beginning."""
        if self.planned is None:
            return self.make_packing_lane(number, pass_number, stages, state)
        lane = PlannedLane(self.planned, stages, pass_number=pass_number)
        if state is not None:
            lane.load_state_dict(state)
        return lane

    def make_packing_lane(self, number: int, pass_number: int, stages: Stages, state: LaneState | None) -> Lane:
        """A lane that groups samples itself."""
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
        plan.aux.prepare()  # before there are workers, who then share what it has read
        if plan.planned is not None:
            plan.planned.prepare(start.pass_number * (plan.config.source.epochs or 0), start.batch)
        self.plan = plan
        self.start = start

    def __iter__(self) -> Iterator[LaneDelivery]:
        number, _ = worker_place()
        return LaneWorker(self.plan, self.start, number).deliveries()


class LaneWorker:
    """Makes every batch that is this worker's, in order, without end: the main process knows when a pass is over."""

    def __init__(self, plan: Plan, start: Start, number: int) -> None:
        self._plan = plan
        self._start = start
        self._number = number
        self._policy = make_policy(plan.config.loader)
        self._stages = Stages(plan.encoder, plan.config, self._policy, aux=plan.aux)
        self._fillers = FillerMaker(plan.feed, self._stages)
        self._lanes: dict[int, Lane | PlannedLane] = {}

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
            yield replace(
                delivery,
                has_next=has_next,
                skips=delivery.skips + lane.take_records(lane.slots - 1),
                seconds=self._stages.times.take(),
                waits={lane.number: lane.oldest_wait},
            )

    def make(self, lane: int, draws: Sequence[int]) -> tuple[Batch | None, int, list[SkipRecord]]:
        """The batch of any group of draws, the fillers in it, and what was skipped."""
        store = SampleStore(lane, self._plan.feed, self._stages)
        good = [draw for draw in draws if store.add(draw, self._plan.feed.sample_of(lane, draw)) is not None]
        batch, num_fillers = self._batch_of(lane, draws, store.take(good))
        return batch, num_fillers, self._policy.take_records()

    def take_records(self) -> list[SkipRecord]:
        """What was skipped since the last call."""
        return self._policy.take_records()

    def take_seconds(self) -> Mapping[str, float]:
        """Time per stage since the last call."""
        return self._stages.times.take()

    def _lane(self, number: int) -> Lane | PlannedLane:
        if number not in self._lanes:
            state = self._start.lanes.get(number)
            self._lanes[number] = self._plan.make_lane(number, self._start.pass_number, self._stages, state)
        return self._lanes[number]

    def _deliver(self, lane: Lane | PlannedLane, slot: int) -> LaneDelivery:
        while lane.slots < slot:
            lane.skip()
        draws = lane.take()
        batch, num_fillers = self._batch_of(lane.number, draws or (), lane.samples(draws or ()))
        return LaneDelivery(
            lane=lane.number,
            state=lane.state_dict(),
            batch=batch,
            num_filler_rows=num_fillers,
            skips=lane.take_records(slot) + self._policy.take_records(),
        )

    def _batch_of(self, lane: int, draws: Sequence[int], samples: Sequence[EncodedSample]) -> tuple[Batch | None, int]:
        rows = self._stages.load(samples)
        return self._batch(rows, self._replacements(lane, draws) if draws and self._plan.is_endless else iter(()))

    def _batch(self, rows: list[Row], spare: Iterator[Row]) -> tuple[Batch | None, int]:
        """A batch of the rows that collate, made up with spare ones, and with fillers: how many is told beside it."""
        while True:
            rows = [*rows, *islice(spare, self._num_missing(rows))]
            missing = self._num_missing(rows)
            if not rows and self._plan.grid.dp_size == 1:
                return None, 0  # a single rank keeps step with nobody, so it needs no batch of fillers only
            try:
                return self._collated(rows, missing), missing
            except SampleError as error:
                rows = self._stages.sift(rows, error)

    def _has_next(self, lane: Lane | PlannedLane, batch: int) -> bool:
        if self._plan.is_endless:
            return True
        grid = self._plan.grid
        boundary = grid.next_boundary(batch, self._start.batch)
        return lane.has_slot(grid.slot_needed(boundary, lane.number, whole_round=self._plan.needs_whole_rounds))

    def _failed(self, lane: Lane | PlannedLane, error: PackloomError) -> LaneDelivery:
        skips = [record for each in self._lanes.values() for record in each.take_all_records()]
        skips += self._policy.take_records()
        seconds, trace = self._stages.times.take(), format_exc()
        return LaneDelivery(lane=lane.number, state={}, skips=skips, failure=error, traceback=trace, seconds=seconds)

    def _num_missing(self, rows: list[Row]) -> int:
        """The rows that a batch lacks: any number of padded ones, but of a pack only the whole."""
        settings = self._plan.config.loader
        return settings.micro_batch_size - len(rows) if settings.layout == "padded" else int(not rows)

    def _replacements(self, lane: int, draws: Sequence[int]) -> Iterator[Row]:
        """Rows for those that turned out bad, of the samples that stand behind them in the dataset.

        These come once more than their turn. Finite passes, where that would falsify a count, get fillers. Raises
        TooManyErrors once all samples were tried.
        """
        feed = self._plan.feed
        last, epoch = feed.sample_of(lane, draws[-1]), feed.epoch_of(lane, draws[-1])
        for step in range(feed.num_samples):
            number = (last + 1 + step) % feed.num_samples
            try:
                with self._stages.times.spent("read"):
                    raw = feed.read(number)
                sample = self._stages.encode(raw, epoch=epoch, offset=feed.offset_of(number))
            except (ReadError, SampleError) as error:
                stage: Stage = "read" if isinstance(error, ReadError) else "encode"
                place, leaf = feed.place_of(number), feed.leaf_of(number)
                self._policy.skip(error, stage=stage, source=place, epoch=epoch, dataset=leaf)
                continue
            yield from self._stages.load([sample])
        counts = counts_by_code(self._policy)
        raise TooManyErrors(no_good_samples(counts.total(), counts))

    def _collated(self, rows: list[Row], num_fillers: int) -> Batch:
        batch = self._stages.collate([*rows, *(self._fillers.row() for _ in range(num_fillers))])
        counts = count_sources(rows, self._plan.config.loader.label_shift)
        if counts:
            batch = {**batch, "source_counts": counts}
        return discount_fillers(batch, num_fillers)
