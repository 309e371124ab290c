"""Draws of one lane go in; their samples are read, encoded and kept small while they wait, and come out whole."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence

from packloom.datasets.policy import Stage
from packloom.errors import ReadError, SampleError, StateError
from packloom.loader.feed import LaneFeed
from packloom.loader.heads import reads_headers_only
from packloom.loader.lance_feed import LanceFeed
from packloom.loader.parked import ParkedSample, park, unpark
from packloom.loader.stages import Stages
from packloom.packing import Cost
from packloom.types import EncodedSample, RawSample


class SampleStore:
    """The samples of one lane that were drawn and did not leave yet.

    A sample that waits beyond the slot in which it was drawn is kept without its media, which are read again when it
    leaves. One that waited when a state was saved is not kept at all: it is read and encoded when it leaves.
    """

    def __init__(self, lane: int, feed: LaneFeed, stages: Stages) -> None:
        self._lane = lane
        self._feed = feed
        self._stages = stages
        self._fresh: dict[int, tuple[EncodedSample, RawSample]] = {}
        self._parked: dict[int, ParkedSample] = {}

    def add(self, draw: int, number: int) -> Cost | None:
        """Read and encode sample ``number``; its cost, or None if it is bad (the policy then has a record of it)."""
        if (late := self._load_head(draw, number)) is not None:
            self._parked[draw] = late
            return self._stages.cost(late.sample)
        found = self._load(draw, number)
        if found is None:
            return None
        self._fresh[draw] = found
        return self._stages.cost(found[0])

    def take(self, draws: Sequence[int]) -> list[EncodedSample]:
        """The samples of a group, with their media. Those that cannot be read (again) are skipped by policy.

        Raises StateError if samples that were encoded again no longer fit one pack.
        """
        found: dict[int, EncodedSample] = {}
        for draw in draws:
            if draw in self._fresh:
                found[draw] = self._fresh[draw][0]
            elif draw not in self._parked:
                loaded = self._load(draw, self._feed.sample_of(self._lane, draw))
                found |= {} if loaded is None else {draw: loaded[0]}
        found |= self._unpark([draw for draw in draws if draw in self._parked])
        self.forget(draws)
        samples = [found[draw] for draw in draws if draw in found]
        self._check_fit(samples)
        return samples

    def sizes(self, draws: Iterable[int]) -> dict[int, tuple[int, int]]:
        """(tokens, patches) of each draw of a group; those that cannot be read again are skipped by policy."""
        found = {}
        for draw in draws:
            sample = self._fresh[draw][0] if draw in self._fresh else None
            sample = self._parked[draw].sample if draw in self._parked else sample
            if sample is None:
                loaded = self._load(draw, self._feed.sample_of(self._lane, draw))
                sample = None if loaded is None else loaded[0]
            if sample is not None:
                found[draw] = sample.num_tokens, sample.num_patches
        return found

    def forget(self, draws: Iterable[int]) -> None:
        for draw in draws:
            self._fresh.pop(draw, None)
            self._parked.pop(draw, None)

    def refuse(self, draw: int, error: SampleError) -> None:
        """Let go of a sample that the packer cannot pack; the policy then has a record of it."""
        sample = self._fresh[draw][0] if draw in self._fresh else None
        sample = self._parked[draw].sample if draw in self._parked else sample
        number, key = self._feed.sample_of(self._lane, draw), error.key
        try:
            key = sample.key if sample is not None else self._feed.read(number)["__key__"]
        except ReadError as unreadable:  # it waited when a state was saved, and was damaged since
            key = unreadable.key
        self.forget([draw])
        self._skip(error.with_key(key).with_offset(self._feed.offset_of(number)), draw, number, stage="pack")

    def settle(self) -> None:
        """Let go of the media of what waits."""
        for draw, (sample, raw) in self._fresh.items():
            self._parked[draw] = park(sample, raw)
        self._fresh.clear()

    def _load_head(self, draw: int, number: int) -> ParkedSample | None:
        """The sample without its media, where its headers are enough; None: the whole is needed, or will tell why."""
        if not (isinstance(self._feed, LanceFeed) and reads_headers_only(self._stages.encoder)):
            return None
        try:
            with self._stages.times.spent("read"):
                raw = self._feed.read_head(number)
            if "__heads__" not in raw:
                return None
            sample = self._stages.encode(raw, epoch=self._feed.epoch_of(self._lane, draw))
        except SampleError:  # read whole, it fails as from a shard, or not at all
            return None
        late = park(sample, raw)
        if None in late.parts:
            return None
        for stage in ("read", "encode"):
            self._stages.policy.passed(stage)
        return late

    def _load(self, draw: int, number: int) -> tuple[EncodedSample, RawSample] | None:
        policy, epoch = self._stages.policy, self._feed.epoch_of(self._lane, draw)
        try:
            with self._stages.times.spent("read"):
                raw = self._feed.read(number)
        except ReadError as error:
            self._skip(error, draw, number, stage="read")
            return None
        policy.passed("read")
        try:
            sample = self._stages.encode(raw, epoch=epoch, offset=self._feed.offset_of(number))
        except SampleError as error:
            self._skip(error, draw, number, stage="encode")
            return None
        policy.passed("encode")
        return sample, raw

    def _unpark(self, draws: Collection[int]) -> dict[int, EncodedSample]:
        """Parked samples with their media; samples that lack the same parts are read together."""
        raws: dict[int, RawSample | ReadError] = {draw: {} for draw in draws}
        groups: dict[tuple[str, ...], list[int]] = {}
        for draw in draws:
            groups.setdefault(self._parked[draw].missing, []).append(draw)
        for parts, group in groups.items():
            if parts:
                numbers = [self._feed.sample_of(self._lane, draw) for draw in group]
                with self._stages.times.spent("read"):
                    raws |= dict(zip(group, self._feed.read_parts(numbers, parts), strict=True))
        found = {}
        for draw, raw in raws.items():
            if isinstance(raw, ReadError):
                self._skip(raw, draw, self._feed.sample_of(self._lane, draw), stage="read")
            else:
                found[draw] = unpark(self._parked[draw], raw)
        return found

    def _skip(self, error: SampleError, draw: int, number: int, *, stage: Stage) -> None:
        epoch, source = self._feed.epoch_of(self._lane, draw), self._feed.place_of(number)
        self._stages.policy.skip(error, stage=stage, source=source, epoch=epoch, dataset=self._feed.leaf_of(number))

    def _check_fit(self, samples: Sequence[EncodedSample]) -> None:
        if self._stages.config.loader.layout != "packed":
            return
        costs = [self._stages.cost(sample) for sample in samples]
        tokens, patches = sum(cost.tokens for cost in costs), sum(cost.patches for cost in costs)
        if not self._stages.limits.admit(tokens, patches):
            raise StateError(
                f"the samples {', '.join(sample.key for sample in samples)} shared a pack when the state was saved;"
                f" now they have {tokens} tokens and {patches} patches, over {self._stages.limits}: the encoder or the"
                " data changed since. Resume with those of then"
            )
