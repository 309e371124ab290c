"""One worker's share of un-indexed shards goes in, finished batches and the records of skipped samples come out."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from itertools import count
from traceback import format_exc
from typing import TypedDict

from typing_extensions import Unpack

from packloom.config import DataConfig
from packloom.datasets.aux_media import AuxLibrary, AuxShelf
from packloom.datasets.order import plan_reads, shuffle_window
from packloom.datasets.shards import read_shard
from packloom.errors import PackloomError, ReadError, SampleError, TooManyErrors
from packloom.loader.delivery import StreamDelivery, no_good_samples
from packloom.loader.stages import Encoder, Stages, make_policy
from packloom.packing import PackerFactory, PackFunction, packs_and_refused
from packloom.rng import derive
from packloom.types import Batch, EncodedSample, RawSample, Row


@dataclass(frozen=True, kw_only=True, slots=True)
class Recipe:
    """All that a worker needs to know; plain data and the encoder, so that it pickles."""

    config: DataConfig  # with the pack length filled in
    shards: tuple[str, ...]
    encoder: Encoder
    dp_rank: int = 0
    dp_size: int = 1
    pack_function: PackFunction | PackerFactory | None = None
    first_epoch: int = 0
    library: AuxLibrary = field(default_factory=AuxLibrary)  # the datasets behind ``aux``
    aux: AuxShelf | None = None


class _Content(TypedDict, total=False):
    """What differs between deliveries."""

    batch: Batch
    failure: PackloomError
    traceback: str


class Pipeline:
    """The stages of one worker slot: read, encode, group or pack, load media, collate."""

    def __init__(self, recipe: Recipe, *, slot: int, num_slots: int) -> None:
        self.recipe = recipe
        self.config = recipe.config
        self.slot = slot
        self.num_slots = num_slots
        self.epoch = recipe.first_epoch
        self.policy = make_policy(recipe.config.loader)
        self.stages = Stages(recipe.encoder, recipe.config, self.policy, aux=recipe.library)
        self._num_pushed = 0
        self._waiting: dict[int, tuple[str, EncodedSample]] = {}  # shard and sample by number, for the packer

    def deliveries(self) -> Iterator[StreamDelivery]:
        """Batches, each with the records of what was skipped since the last one.

        A PackloomError ends them and travels in the last one, so that it reaches the main process as itself, and
        behind the records that led to it. Other exceptions are bugs and are raised.
        """
        batches = self._packed() if self.config.loader.layout == "packed" else self._padded()
        try:
            for batch in batches:
                yield self._delivery(batch=batch)
        except PackloomError as error:
            yield self._delivery(failure=error, traceback=format_exc())
            return
        yield self._delivery()

    def _delivery(self, **content: Unpack[_Content]) -> StreamDelivery:
        oldest = self._num_pushed - 1 - min(self._waiting) if self._waiting else 0
        return StreamDelivery(
            epoch=self.epoch,
            skips=self.policy.take_records(),
            seconds=self.stages.times.take(),
            waits={self.slot: oldest},
            **content,
        )

    def _packed(self) -> Iterator[Batch]:
        packer = self.stages.make_packer(self.recipe.pack_function)
        for place, sample in self._samples():
            index, self._num_pushed = self._num_pushed, self._num_pushed + 1
            self._waiting[index] = place, sample
            yield from self._packs(partial(packer.push, index, self.stages.cost(sample)))
        yield from self._packs(packer.finish)

    def _packs(self, group: Callable[[], list[list[int]]]) -> Iterator[Batch]:
        """The batches of the packs that are complete; samples that the packer refuses are skipped by policy."""
        packs, errors = packs_and_refused(group)
        self.policy.passed("pack", sum(map(len, packs)))
        for index, error in errors.items():
            place, sample = self._waiting.pop(index)
            self.policy.skip(error.with_key(sample.key), stage="pack", source=place, epoch=sample.epoch)
        for pack in packs:
            rows = self.stages.load([self._waiting.pop(index)[1] for index in pack])
            while rows:
                batch, rows = self._collated(rows)
                if batch is not None:
                    yield batch

    def _padded(self) -> Iterator[Batch]:
        """Rows of ``micro_batch_size`` samples; one whose media fail is replaced by the next. The last may be short."""
        size = self.config.loader.micro_batch_size
        rows: list[Row] = []
        waiting: list[EncodedSample] = []
        for _, sample in self._samples():
            waiting.append(sample)
            if len(rows) + len(waiting) < size:
                continue
            rows += self.stages.load(waiting)
            waiting = []
            if len(rows) == size:
                batch, rows = self._collated(rows)
                if batch is not None:
                    yield batch
        rows += self.stages.load(waiting)
        while rows:
            batch, rows = self._collated(rows)
            if batch is not None:
                yield batch

    def _samples(self) -> Iterator[tuple[str, EncodedSample]]:
        """The good samples of all epochs. An endless stream ends when no epoch has any (more) for this slot."""
        source = self.config.source
        rounds = self.num_slots if source.shuffle else 1  # after so many epochs a slot has seen all that it can
        num_dry = num_skipped = 0
        for epoch in count(self.epoch) if source.epochs is None else range(self.epoch, self.epoch + source.epochs):
            self.epoch = epoch
            num_good, num_before = 0, self.policy.counts.total()
            for item in self._encoded(epoch):
                num_good += 1
                yield item
            num_dry = 0 if num_good else num_dry + 1
            num_skipped = 0 if num_good else num_skipped + self.policy.counts.total() - num_before
            if source.epochs is None and num_dry >= rounds:
                if num_skipped:
                    raise TooManyErrors(
                        no_good_samples(num_skipped, {c: n for (_, c), n in self.policy.counts.items()})
                    )
                return

    def _encoded(self, epoch: int) -> Iterator[tuple[str, EncodedSample]]:
        """Shard and sample."""
        items = self._items(epoch)
        while True:
            with self.stages.times.spent("read"):
                shard, item = next(items, ("", None))
            if item is None:
                return
            if isinstance(item, ReadError):
                self.policy.skip(item, stage="read", source=shard, epoch=epoch)
                continue
            self.policy.passed("read")
            try:
                sample = self.stages.encode(self._with_aux(item), epoch=epoch)
            except SampleError as error:
                self.policy.skip(error, stage="encode", source=shard, epoch=epoch)
                continue
            self.policy.passed("encode")
            yield shard, sample

    def _with_aux(self, raw: RawSample) -> RawSample:
        return raw if self.recipe.aux is None else {**raw, "__aux__": self.recipe.aux}

    def _items(self, epoch: int) -> Iterator[tuple[str, RawSample | ReadError]]:
        """Shard and item, in the order of the epoch. A ReadError stands for one sample too."""
        source = self.config.source
        reads = plan_reads(
            self.recipe.shards,
            seed=source.seed,
            epoch=epoch,
            shuffle=source.shuffle,
            slot=self.slot,
            num_slots=self.num_slots,
        )
        items = (
            (read.path, item) for read in reads for item in read_shard(read.path, first=read.first, step=read.step)
        )
        if not source.shuffle:
            return items
        rng = derive(source.seed, epoch, "window", self.slot, self.num_slots)
        return shuffle_window(items, window=source.shuffle_window, rng=rng)

    def _collated(self, rows: list[Row]) -> tuple[Batch | None, list[Row]]:
        """A batch of the rows, and none that are left; or, where some do not collate, no batch and the others."""
        try:
            return self.stages.collate(rows), []
        except SampleError as error:
            return None, self.stages.sift(rows, error)
