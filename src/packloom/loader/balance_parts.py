"""A plan and the states of lanes go in; the packs that some lanes put into each window come out, by their lengths."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import count
from traceback import format_exc

from torch.utils.data import IterableDataset

from packloom.errors import PackloomError
from packloom.loader.delivery import Delivery
from packloom.loader.lane import Lane, LaneState, MeasuredPack
from packloom.loader.processes import worker_place
from packloom.loader.stages import Stages, make_policy
from packloom.loader.worker import Plan, Start


@dataclass(frozen=True, kw_only=True)
class WindowPart(Delivery):
    """What the lanes of one worker put into one window, and what was skipped on the way."""

    packs: Sequence[MeasuredPack] = ()
    states: Mapping[int, LaneState] = field(default_factory=dict)  # of each lane before the window


class PartStream(IterableDataset[WindowPart]):
    """Each worker follows every so manyth of ``lanes``, window after window, without end. No image is decoded.

    ``slots`` are those of each lane in a window, ``first`` is the window to begin with, and of ``reported`` lanes what
    they skip is told.
    """

    def __init__(
        self, plan: Plan, start: Start, *, lanes: Sequence[int], reported: Sequence[int], slots: int, first: int
    ) -> None:
        super().__init__()
        plan.aux.prepare()
        self._plan = plan
        self._start = start
        self._lanes = lanes
        self._reported = reported
        self._slots = slots
        self._first = first

    def __iter__(self) -> Iterator[WindowPart]:
        return self._parts()

    def _parts(self) -> Iterator[WindowPart]:
        number, num_workers = worker_place()
        policy = make_policy(self._plan.config.loader)
        stages = Stages(self._plan.encoder, self._plan.config, policy, aux=self._plan.aux)
        states = self._start.lanes
        lanes = [
            self._plan.make_packing_lane(lane, self._start.pass_number, stages, states.get(lane))
            for lane in self._lanes[number::num_workers]
        ]
        try:
            for _ in count(self._first):
                yield self._part(lanes, stages)
        except PackloomError as error:
            trace = format_exc()
            records = [record for lane in lanes for record in lane.take_all_records()] + policy.take_records()
            yield WindowPart(failure=error, traceback=trace, skips=records)

    def _part(self, lanes: Sequence[Lane], stages: Stages) -> WindowPart:
        before = {lane.number: lane.state_dict() for lane in lanes}
        found = [lane.measure() for lane in lanes for _ in range(self._slots)]
        skips = []
        for lane in lanes:
            records = lane.take_all_records()
            skips += records if lane.number in self._reported else []
            lane.settle()
        return WindowPart(
            packs=[pack for pack in found if pack is not None],
            states=before,
            skips=skips,
            seconds=stages.times.take(),
            waits={lane.number: lane.oldest_wait for lane in lanes},
        )
