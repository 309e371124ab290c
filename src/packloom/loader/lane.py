"""One lane: samples are drawn in its order and encoded; the groups that share a batch come out, slot by slot.

What a lane does depends on the dataset, the encoder and the settings alone. Media are none of its business, so that a
damaged image moves no later group, and a lane can be followed without decoding anything.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, TypedDict

from packloom.config import DataConfig
from packloom.datasets.policy import SkipRecord
from packloom.errors import TooManyErrors
from packloom.loader.delivery import counts_by_code, no_good_samples
from packloom.loader.feed import LaneFeed
from packloom.loader.grouping import Grouper, PackGrouper, RowGrouper
from packloom.loader.sample_store import SampleStore
from packloom.loader.stages import Stages
from packloom.packing import PackerFactory, PackFunction, packs_and_refused
from packloom.types import EncodedSample


class LaneState(TypedDict):
    """Where a lane stands, in plain numbers."""

    slots: int  # taken so far in this pass
    drawn: int  # draws so far, over all epochs
    ready: list[list[int]]  # groups of draws that were not taken yet
    waiting: Mapping[str, Any]  # of the grouper
    again: list[int]  # draws to be drawn once more, since what they cost has changed


@dataclass(frozen=True, kw_only=True, slots=True)
class MeasuredPack:
    """A group of draws by their lengths. Small: it is sent from rank to rank."""

    lane: int
    slot: int
    draws: tuple[int, ...]
    tokens: tuple[int, ...]  # of each, before alignment
    patches: tuple[int, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class Span:
    """The epochs of a pass, in draws of one lane; ``end`` is None for an endless pass."""

    start: int
    end: int | None
    flush_every: int | None  # draws after which what waits is grouped at once
    goes_on: bool  # whether there are further groups behind the end


def make_span(config: DataConfig, epoch_length: int, number: int) -> Span:
    """The span of pass ``number``. No pack of a finite pass has samples of two epochs; padded batches may."""
    epochs, wraps = config.source.epochs, config.loader.tail == "wrap"
    if epochs is None:
        return Span(start=0, end=None, flush_every=None, goes_on=True)
    length = epochs * epoch_length
    flush_every = epoch_length if config.loader.layout == "packed" else None if wraps else length
    return Span(start=number * length, end=(number + 1) * length, flush_every=flush_every, goes_on=wraps)


class Lane:
    """Groups of samples, slot after slot. Resumes from a state without reading anything."""

    def __init__(
        self,
        number: int,
        feed: LaneFeed,
        stages: Stages,
        *,
        span: Span,
        pack_function: PackFunction | PackerFactory | None = None,
    ) -> None:
        settings = stages.config.loader
        self.number = number
        self.slots = 0
        self._feed = feed
        self._policy = stages.policy
        self._span = span
        self._store = SampleStore(number, feed, stages)
        self._drops_short = settings.layout == "padded" and settings.tail == "drop"
        self._grouper: Grouper = (
            PackGrouper(stages.make_packer(pack_function), keep_whole=isinstance(pack_function, PackerFactory))
            if settings.layout == "packed"
            else RowGrouper(settings.micro_batch_size, keep_short=not self._drops_short)
        )
        self._drawn = span.start
        self._again: deque[int] = deque()
        self._ready: deque[list[int]] = deque()
        self._order = feed.samples_from(number, self._drawn)
        self._num_bad = 0  # draws since the last good one
        self._num_refused = 0  # by the packer, since it last packed any
        self._records: dict[int, list[SkipRecord]] = {}  # by the slot that was being formed

    def take(self) -> list[int] | None:
        """The draws of the next slot; None where the pass has no more groups for it.

        Raises TooManyErrors where an endless lane finds no good sample, and what the error policy raises.
        """
        while not self._ready:
            if self._can_draw():
                self._draw()
            elif self._is_own(self._grouper.waiting):
                self._flush()  # the mates that it waits for will not come
            else:
                self.slots += 1
                return None
        self.slots += 1
        return self._ready.popleft()

    def skip(self) -> None:
        """Leave the next slot to another worker, who reports what was skipped for it."""
        self._store.forget(self.take() or ())
        self._records.pop(self.slots - 1, None)

    def measure(self) -> MeasuredPack | None:
        """The next slot with the lengths of its samples, for another worker to make; None where the pass has none."""
        draws = self.take()
        if draws is None:
            return None
        sizes = self._store.sizes(draws)
        self._store.forget(draws)
        return MeasuredPack(
            lane=self.number,
            slot=self.slots - 1,
            draws=tuple(sizes or draws),  # where none can be read again, whoever makes the batch has to say so
            tokens=tuple(tokens for tokens, _ in sizes.values()),
            patches=tuple(patches for _, patches in sizes.values()),
        )

    def has_slot(self, slot: int) -> bool:
        """Whether the pass gives this lane a slot of that number; draws ahead as far as needed to know."""
        while self._num_certain() <= slot:
            if self._is_drawn():
                return False
            self._draw()
        return True

    def samples(self, draws: Sequence[int]) -> list[EncodedSample]:
        """The samples of a group, less those that turn out bad only now."""
        return self._store.take(draws)

    def settle(self) -> None:
        """Keep only what is small of the samples that wait."""
        self._store.settle()

    def take_records(self, slot: int) -> list[SkipRecord]:
        """What was skipped for a slot that was taken. With the last slot comes what was skipped behind it.

        Each record comes once over all workers that share a lane, since it belongs to one slot.
        """
        return self._records.pop(slot, [])

    def take_all_records(self) -> list[SkipRecord]:
        """What was skipped and not asked for yet."""
        records = [record for group in self._records.values() for record in group]
        self._records.clear()
        return records

    @property
    def oldest_wait(self) -> int:
        """How many samples were drawn after the one that waits longest; 0 where none waits."""
        waiting = [*self._grouper.waiting, *self._again, *(draw for group in self._ready for draw in group)]
        return self._drawn - 1 - min(waiting) if waiting else 0

    def state_dict(self) -> LaneState:
        return LaneState(
            slots=self.slots,
            drawn=self._drawn,
            ready=[list(group) for group in self._ready],
            waiting=self._grouper.state_dict(),
            again=list(self._again),
        )

    def load_state_dict(self, state: LaneState) -> None:
        self.slots = state["slots"]
        self._drawn = state["drawn"]
        self._ready = deque(list(group) for group in state["ready"])
        if state["waiting"]:
            self._grouper.load_state_dict(state["waiting"])
        self._again = deque(state["again"])
        self._order = self._feed.samples_from(self.number, self._drawn)

    def _draw(self) -> None:
        """Draw one sample; it joins those that wait, and may complete groups."""
        slot, was_drawn = self.slots + len(self._ready), self._is_drawn()
        if self._again:
            draw = self._again.popleft()
            number = self._feed.sample_of(self.number, draw)
        else:
            draw, number = self._drawn, next(self._order)
            self._drawn += 1
        cost = self._store.add(draw, number)
        if cost is None:
            self._num_bad += 1
        else:
            self._num_bad = 0
            self._ready.extend(self._grouped(partial(self._grouper.push, draw, cost)))
        every = self._span.flush_every
        if every is not None and not self._again and self._drawn % every == 0:
            self._flush()
        if records := self._policy.take_records():
            self._records.setdefault(slot, []).extend(records)
        if self._is_drawn() and not was_drawn and slot > 0 and self._num_certain() <= slot:
            self._records.setdefault(slot - 1, []).extend(self._records.pop(slot, []))

    def _flush(self) -> None:
        waiting = self._grouper.waiting
        groups = self._grouped(self._grouper.finish)
        self._ready.extend(groups)
        self._store.forget(set(waiting).difference(*groups))

    def _grouped(self, group: Callable[[], list[list[int]]]) -> list[list[int]]:
        """The groups; samples that the packer refuses are skipped by policy."""
        groups, errors = packs_and_refused(group)
        self._policy.passed("pack", sum(map(len, groups)))
        self._num_refused = len(errors) + (0 if groups else self._num_refused)
        for draw, error in errors.items():
            self._store.refuse(draw, error)
        return groups

    def _can_draw(self) -> bool:
        if not self._is_drawn():
            return self._span.end is not None or self._has_hope()
        return self._span.goes_on and self._has_hope()

    def _has_hope(self) -> bool:
        """Whether a good sample may still come, after all the bad ones."""
        num_bad = max(self._num_bad, self._num_refused)
        if num_bad < max(self._feed.num_samples, self._feed.epoch_length(self.number)):
            return True
        if self._span.end is not None:
            return False
        raise TooManyErrors(no_good_samples(num_bad, counts_by_code(self._policy)))

    def _is_drawn(self) -> bool:
        """Whether all samples of the pass were drawn."""
        return self._span.end is not None and self._drawn >= self._span.end and not self._again

    def _num_certain(self) -> int:
        """The slots that this pass has for certain, by what was drawn so far."""
        if not self._drops_short and self._is_own(self._grouper.waiting):
            return self.slots + len(self._ready) + 1
        own = [place for place, group in enumerate(self._ready, start=1) if self._is_own(group)]
        return self.slots + (own[-1] if own else 0)

    def _is_own(self, draws: Sequence[int]) -> bool:
        """Whether any draw is of this pass, and not of what follows its end."""
        return any(self._span.end is None or draw < self._span.end for draw in draws)
