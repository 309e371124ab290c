"""One worker's share of un-indexed shards goes in, finished batches and the records of skipped samples come out."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import count
from traceback import format_exc

from packloom.config import DataConfig
from packloom.datasets.order import plan_reads, shuffle_window
from packloom.datasets.policy import ErrorPolicy
from packloom.datasets.shards import read_shard
from packloom.errors import PackloomError, ReadError, SampleError, TooManyErrors
from packloom.loader.delivery import StreamDelivery, no_good_samples
from packloom.loader.stages import Encoder, Stages
from packloom.packing import PackFunction
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
    pack_function: PackFunction | None = None
    first_epoch: int = 0


class Pipeline:
    """The stages of one worker slot: read, encode, group or pack, load media, collate."""

    def __init__(self, recipe: Recipe, *, slot: int, num_slots: int) -> None:
        self.recipe = recipe
        self.config = recipe.config
        self.slot = slot
        self.num_slots = num_slots
        self.epoch = recipe.first_epoch
        settings = recipe.config.loader
        self.policy = ErrorPolicy(on_error=settings.on_error, max_consecutive=settings.max_consecutive_errors)
        self.stages = Stages(recipe.encoder, recipe.config, self.policy)

    def deliveries(self) -> Iterator[StreamDelivery]:
        """Batches, each with the records of what was skipped since the last one.

        A PackloomError ends them and travels in the last one, so that it reaches the main process as itself, and
        behind the records that led to it. Other exceptions are bugs and are raised.
        """
        batches = self._packed() if self.config.loader.layout == "packed" else self._padded()
        try:
            for batch in batches:
                yield StreamDelivery(epoch=self.epoch, batch=batch, skips=self.policy.take_records())
        except PackloomError as error:
            skips = self.policy.take_records()
            yield StreamDelivery(epoch=self.epoch, skips=skips, failure=error, traceback=format_exc())
            return
        yield StreamDelivery(epoch=self.epoch, skips=self.policy.take_records())

    def _packed(self) -> Iterator[Batch]:
        waiting: dict[int, EncodedSample] = {}
        packer = self.stages.make_packer(self.recipe.pack_function)
        for index, sample in enumerate(self._samples()):
            waiting[index] = sample
            for pack in packer.push(index, self.stages.cost(sample)):
                yield from self._collated(self.stages.load([waiting.pop(place) for place in pack]))
        for pack in packer.finish():
            yield from self._collated(self.stages.load([waiting.pop(place) for place in pack]))

    def _padded(self) -> Iterator[Batch]:
        """Rows of ``micro_batch_size`` samples; one whose media fail is replaced by the next. The last may be short."""
        size = self.config.loader.micro_batch_size
        rows: list[Row] = []
        waiting: list[EncodedSample] = []
        for sample in self._samples():
            waiting.append(sample)
            if len(rows) + len(waiting) < size:
                continue
            rows += self.stages.load(waiting)
            waiting = []
            if len(rows) == size:
                yield from self._collated(rows)
                rows = []
        yield from self._collated([*rows, *self.stages.load(waiting)])

    def _samples(self) -> Iterator[EncodedSample]:
        """The good samples of all epochs. An endless stream ends when no epoch has any (more) for this slot."""
        source = self.config.source
        rounds = self.num_slots if source.shuffle else 1  # after so many epochs a slot has seen all that it can
        num_dry = num_skipped = 0
        for epoch in count(self.epoch) if source.epochs is None else range(self.epoch, self.epoch + source.epochs):
            self.epoch = epoch
            num_good, num_before = 0, self.policy.counts.total()
            for sample in self._encoded(epoch):
                num_good += 1
                yield sample
            num_dry = 0 if num_good else num_dry + 1
            num_skipped = 0 if num_good else num_skipped + self.policy.counts.total() - num_before
            if source.epochs is None and num_dry >= rounds:
                if num_skipped:
                    raise TooManyErrors(
                        no_good_samples(num_skipped, {c: n for (_, c), n in self.policy.counts.items()})
                    )
                return

    def _encoded(self, epoch: int) -> Iterator[EncodedSample]:
        for shard, item in self._items(epoch):
            if isinstance(item, ReadError):
                self.policy.skip(item, stage="read", source=shard)
                continue
            self.policy.passed("read")
            try:
                sample = self.stages.encode(item, epoch=epoch)
            except SampleError as error:
                self.policy.skip(error, stage="encode", source=shard)
                continue
            self.policy.passed("encode")
            yield sample

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

    def _collated(self, rows: list[Row]) -> Iterator[Batch]:
        """One batch, or none where no row is left."""
        if rows:
            yield self.stages.collate(rows)
