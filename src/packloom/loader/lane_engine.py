"""A plan goes in; this rank's batches come out, pass by pass, with the state of the last one that was consumed."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Collection, Iterator, Mapping
from dataclasses import replace
from functools import cached_property
from typing import Any, cast

from packloom.config import DataConfig
from packloom.datasets.policy import ErrorPolicy
from packloom.errors import ConfigError, PackloomError, TooManyErrors
from packloom.loader.delivery import Delivery, LaneDelivery, no_good_samples
from packloom.loader.distribution import Place
from packloom.loader.fingerprint import encoder_fingerprint, qualified_name
from packloom.loader.lane import Lane, LaneState
from packloom.loader.plan_lane import PlannedLane
from packloom.loader.processes import run_workers
from packloom.loader.stages import Stages
from packloom.loader.state import STATE_VERSION, LoaderState, check_state, seal, shaping_settings
from packloom.loader.worker import LaneStream, Plan, Start
from packloom.packing import PackerFactory

logger = logging.getLogger(__name__)

#: More errors than any dataset has samples.
_NO_LIMIT = 1 << 62


class LaneEngine:
    """Runs the workers of one rank and keeps the newest state of each lane.

    A pass is ``epochs`` epochs. What is counted is what was consumed: a delivery changes the state when it is handed
    on, so batches that were made ahead do not matter.
    """

    def __init__(self, plan: Plan, place: Place) -> None:
        self._plan = plan
        self._place = place
        # What was consumed. It is replaced as a whole: when a worker dies, torch raises between any two steps of ours.
        self._at = Start(pass_number=0, batch=0, lanes={})
        self._has_next: dict[int, bool] = {}  # lane → whether it has a slot in the round at the next boundary
        self._run: Iterator[Any] | None = None
        self._reader: object = None  # the iteration that may go on
        self._counted: tuple[int, dict[int, int]] | None = None  # pass, and the slots of other ranks' lanes in it

    @property
    def config(self) -> DataConfig:
        return self._plan.config

    def deliveries(self) -> Iterator[Delivery]:
        """What is left of the pass; the next call then begins the next one.

        Raises TooManyErrors for a pass without a good sample, ConfigError if ``tail="drop"`` leaves nothing of it, and
        PackloomError in an iteration that a newer one, or a loaded state, has replaced.
        """
        reader = self._reader = object()
        is_whole, num_samples, skipped = self._at.batch == 0, 0, Counter[str]()
        try:
            while self._round_takes_place():
                delivery = self._next()
                num_samples += delivery.batch["source_sample_num"] if delivery.batch is not None else 0
                skipped.update(record.code for record in delivery.skips)
                yield delivery
                if self._reader is not reader:
                    raise PackloomError("a newer iteration of this loader, or a loaded state, has replaced this one")
        finally:
            if self._reader is reader and not self.config.loader.persistent_workers:
                self._run = None
        had_rounds = self._at.batch > 0
        self._go_to(Start(pass_number=self._at.pass_number + 1, batch=0, lanes={}))
        if is_whole:
            self._explain_end(had_rounds, num_samples, skipped)

    def state_dict(self) -> dict[str, Any]:
        at = self._at
        lanes = {str(number): at.lanes[number] for number in self._own_lanes() if number in at.lanes}
        return seal({**self._blank, "pass_number": at.pass_number, "batch": at.batch, "lanes": lanes})

    def _own_lanes(self) -> list[int]:
        return self._plan.grid.own_lanes(self._at.batch)

    def load_state_dict(self, state: Mapping[str, Any], *, allow_mismatch: Collection[str]) -> None:
        checked = check_state(state, self._blank, allow_mismatch=allow_mismatch)
        lanes = {int(number): lane for number, lane in checked["lanes"].items()}
        self._go_to(Start(pass_number=checked["pass_number"], batch=checked["batch"], lanes=lanes))
        self._reader = None

    @cached_property
    def _blank(self) -> LoaderState:
        """The state at the very beginning."""
        plan = self._plan
        own = plan.pack_function
        packer = "best_fit" if own is None else qualified_name(own.make if isinstance(own, PackerFactory) else own)
        if plan.planned is not None:
            packer = f"plan {plan.planned.plan.header['digest']}"
        return LoaderState(
            version=STATE_VERSION,
            dataset=plan.feed.fingerprint,
            encoder=encoder_fingerprint(plan.encoder),
            settings={**shaping_settings(plan.config, packer), **plan.aux.facts},
            num_lanes=plan.grid.num_lanes,
            dp_rank=plan.grid.dp_rank,
            dp_size=plan.grid.dp_size,
            pass_number=0,
            batch=0,
            lanes={},
            digest="",
        )

    def _go_to(self, start: Start) -> None:
        self._at, self._has_next, self._run = start, {}, None

    def _next(self) -> Delivery:
        """The next delivery, which is consumed from here on."""
        if self._run is None:
            stream = LaneStream(self._plan, self._at)
            self._run = run_workers(stream, self.config.loader, seed=self.config.source.seed)
        try:
            delivery: LaneDelivery = next(self._run)
        except BaseException:
            self._run = None  # an exception ends it
            raise
        if delivery.failure is not None:
            self._run = None
            return delivery
        lanes = {**self._at.lanes, delivery.lane: cast(LaneState, delivery.state)}
        self._has_next[delivery.lane] = delivery.has_next
        self._at = replace(self._at, batch=self._at.batch + self._plan.grid.dp_size, lanes=lanes)
        return delivery

    # -- the end of a pass, on which all ranks must agree ---------------------------------------------------------

    def _round_takes_place(self) -> bool:
        """Whether there is a next batch on every rank."""
        plan = self._plan
        if plan.is_endless or not plan.grid.is_boundary(self._at.batch):
            return True
        if self._at.batch == 0 and not plan.needs_whole_rounds:
            return True  # the first batch shows whether any sample is good
        combine = all if plan.needs_whole_rounds else any
        # Lanes of which it is known come first: they may settle the question.
        lanes = sorted(plan.grid.own_lanes(self._at.batch), key=lambda number: number not in self._has_next)
        own = combine(self._lane_goes_on(number) for number in lanes)
        self._has_next.clear()
        if plan.grid.sees_all_lanes:
            return own
        if self._place.can_vote:
            return self._place.vote(own, unanimous=plan.needs_whole_rounds)
        if own != plan.needs_whole_rounds:
            return own
        return combine(self._needed_slot(number) < slots for number, slots in self._slots_elsewhere.items())

    def _needed_slot(self, number: int) -> int:
        return self._plan.grid.slot_needed(self._at.batch, number, whole_round=self._plan.needs_whole_rounds)

    def _lane_goes_on(self, number: int) -> bool:
        if number in self._has_next:
            return self._has_next[number]
        lane = self._probe(number, self._at.lanes.get(number))
        return lane.has_slot(self._needed_slot(number))

    def _probe(self, number: int, state: LaneState | None) -> Lane | PlannedLane:
        """A lane to look ahead with. It skips all bad samples in silence: the workers will report them."""
        stages = Stages(self._plan.encoder, self.config, ErrorPolicy(max_consecutive=_NO_LIMIT))
        return self._plan.make_lane(number, self._at.pass_number, stages, state)

    @property
    def _slots_elsewhere(self) -> dict[int, int]:
        """The slots of the lanes of other ranks in this pass, found by encoding all their samples."""
        if self._counted is None or self._counted[0] != self._at.pass_number:
            own = set(self._plan.grid.own_lanes(self._at.batch))
            others = [number for number in range(self._plan.grid.num_lanes) if number not in own]
            logger.warning(
                "counting the batches of other ranks by encoding their %d lanes, which may take long: initialise"
                " torch.distributed, or give build_loader a process_group or device_mesh, so that the ranks can ask",
                len(others),
            )
            self._counted = self._at.pass_number, {number: self._count_slots(number) for number in others}
        return self._counted[1]

    def _count_slots(self, number: int) -> int:
        lane = self._probe(number, None)
        while lane.has_slot(lane.slots):
            lane.skip()
            lane.settle()
        return lane.slots

    def _explain_end(self, had_rounds: bool, num_samples: int, skipped: Counter[str]) -> None:
        """Raise for a pass that gave nothing, though there is something to read."""
        if num_samples == 0 and skipped and self._plan.grid.dp_size == 1:
            raise TooManyErrors(no_good_samples(skipped.total(), skipped))
        if not had_rounds:
            raise ConfigError(
                f"tail='drop' leaves not one batch: {self._plan.feed.num_samples} samples do not make a whole round of"
                f" {self._plan.grid.round_size} batches. Use tail='pad', or fewer lanes or ranks"
            )
