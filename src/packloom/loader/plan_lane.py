"""A pass of a plan goes in; its groups come out, slot by slot, and their samples, held to the planned lengths."""

from __future__ import annotations

from collections.abc import Sequence

from packloom.datasets.policy import SkipRecord
from packloom.errors import PlanError
from packloom.loader.lane import LaneState
from packloom.loader.plan_feed import PlanFeed
from packloom.loader.sample_store import SampleStore
from packloom.loader.stages import Stages
from packloom.types import EncodedSample


class PlannedLane:
    """The one lane of a planned run. Slot ``s`` is pack ``s`` of the pass, so that its state is a number.

    Nothing is read before its slot is taken, and a slot that is another's costs nothing.
    """

    number = 0
    oldest_wait = 0

    def __init__(self, feed: PlanFeed, stages: Stages, *, pass_number: int) -> None:
        source = stages.config.source
        self.slots = 0
        self._feed = feed
        self._store = SampleStore(0, feed, stages)
        self._first_epoch = pass_number * (source.epochs or 0)
        self._num_slots = None if source.epochs is None else feed.count_packs(self._first_epoch, source.epochs)
        self._wraps = stages.config.loader.tail == "wrap"
        self._expected: dict[int, tuple[int, int]] = {}  # draw → tokens and patches of the plan

    def take(self) -> list[int] | None:
        """The draws of the next slot; None where the pass has no more packs for it."""
        slot, self.slots = self.slots, self.slots + 1
        if not self._wraps and not self._is_own(slot):
            return None
        pack = self._feed.pack(self._first_epoch, slot)
        draws = range(pack.start, pack.stop)
        self._expected = dict(zip(draws, zip(pack.tokens, pack.patches, strict=True), strict=True))
        return list(draws)

    def skip(self) -> None:
        """Leave the next slot to another worker."""
        self.slots += 1

    def has_slot(self, slot: int) -> bool:
        """Whether the pass gives this lane a slot of that number."""
        return self._is_own(slot)

    def samples(self, draws: Sequence[int]) -> list[EncodedSample]:
        """The samples of the slot that was taken, less those that are bad.

        Raises PlanError for one that is longer or shorter than planned.
        """
        good = [draw for draw in draws if self._store.add(draw, self._feed.sample_of(0, draw)) is not None]
        samples = []
        for draw in good:
            [sample] = self._store.take([draw])
            found, planned = (sample.num_tokens, sample.num_patches), self._expected[draw]
            if found != planned:
                raise PlanError(
                    f"sample {sample.key!r} of {self._feed.place_of(self._feed.sample_of(0, draw))} has {found[0]}"
                    f" tokens and {found[1]} patches, the plan says {planned[0]} and {planned[1]}: the encoder has"
                    f" changed, or makes lengths at random. Make {self._feed.plan.path} again with another --cache"
                )
            samples.append(sample)
        return samples

    def settle(self) -> None:
        """Nothing waits."""

    def take_records(self, slot: int) -> list[SkipRecord]:
        """What is skipped is skipped while its slot is made, so none is kept here."""
        return []

    def take_all_records(self) -> list[SkipRecord]:
        return []

    def state_dict(self) -> LaneState:
        return LaneState(slots=self.slots, drawn=0, ready=[], waiting={}, again=[])

    def load_state_dict(self, state: LaneState) -> None:
        self.slots = state["slots"]

    def _is_own(self, slot: int) -> bool:
        return self._num_slots is None or slot < self._num_slots
