"""One worker's share of a dataset goes in, finished batches and the records of skipped samples come out."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import count
from traceback import format_exc
from typing import Protocol

from packloom.config import DataConfig
from packloom.datasets.order import plan_reads, shuffle_window
from packloom.datasets.policy import ErrorPolicy, SkipRecord
from packloom.datasets.shards import read_shard
from packloom.errors import BatchError, BudgetError, PackloomError, ReadError, SampleError, TooManyErrors
from packloom.packing import BestFitPacker, CheckedPacker, Cost, PackFunction, PackLimits, WindowPacker, aligned
from packloom.rng import derive
from packloom.types import Batch, EncodedSample, LabelShift, Layout, RawSample, Row

logger = logging.getLogger(__name__)


class Encoder(Protocol):
    """What the loader needs of an encoder; ``packloom.TaskEncoder`` is one. It must pickle if workers are spawned."""

    @property
    def max_length(self) -> int | None: ...

    def encode_sample(self, raw: RawSample) -> EncodedSample: ...

    def batch(self, samples: Sequence[EncodedSample]) -> list[Row]: ...

    def collate(
        self,
        rows: Sequence[Row],
        *,
        layout: Layout,
        label_shift: LabelShift,
        pad_to_multiple_of: int,
        segment_multiple: int,
        length: int | None,
    ) -> Batch: ...


@dataclass(frozen=True, kw_only=True, slots=True)
class Recipe:
    """All that a worker needs to know; plain data and the encoder, so that it pickles."""

    config: DataConfig  # with the pack length filled in
    shards: tuple[str, ...]
    encoder: Encoder
    pack_function: PackFunction | None = None
    first_epoch: int = 0


@dataclass(frozen=True, kw_only=True, slots=True)
class Delivery:
    """What a worker hands over at a time. With ``failure`` it is the worker's last."""

    epoch: int
    batch: Batch | None = None
    skips: list[SkipRecord] = field(default_factory=list)
    failure: PackloomError | None = None
    traceback: str = ""  # of the failure, since exceptions lose theirs on the way to another process


class Pipeline:
    """The stages of one worker slot: read, encode, group or pack, load media, collate."""

    def __init__(self, recipe: Recipe, *, slot: int, num_slots: int) -> None:
        self.recipe = recipe
        self.config = recipe.config
        self.encoder = recipe.encoder
        self.slot = slot
        self.num_slots = num_slots
        self.epoch = recipe.first_epoch
        self.limits = PackLimits(recipe.config.packing.pack_length or 1, recipe.config.packing.max_patches)
        settings = recipe.config.loader
        self.policy = ErrorPolicy(on_error=settings.on_error, max_consecutive=settings.max_consecutive_errors)

    def deliveries(self) -> Iterator[Delivery]:
        """Batches, each with the records of what was skipped since the last one.

        A PackloomError ends them and travels in the last one, so that it reaches the main process as itself, and
        behind the records that led to it. Other exceptions are bugs and are raised.
        """
        batches = self._packed() if self.config.loader.layout == "packed" else self._padded()
        try:
            for batch in batches:
                yield Delivery(epoch=self.epoch, batch=batch, skips=self.policy.take_records())
        except PackloomError as error:
            yield Delivery(epoch=self.epoch, skips=self.policy.take_records(), failure=error, traceback=format_exc())
            return
        yield Delivery(epoch=self.epoch, skips=self.policy.take_records())

    def _packed(self) -> Iterator[Batch]:
        waiting: dict[int, EncodedSample] = {}
        packer = self._packer()
        for index, sample in enumerate(self._samples()):
            waiting[index] = sample
            for pack in packer.push(index, self._cost(sample)):
                yield from self._collated(self._load([waiting.pop(place) for place in pack]))
        for pack in packer.finish():
            yield from self._collated(self._load([waiting.pop(place) for place in pack]))

    def _packer(self) -> CheckedPacker:
        settings = self.config.packing
        if self.recipe.pack_function is not None:
            window = WindowPacker(
                self.recipe.pack_function, self.limits, window=min(256, settings.max_wait), max_wait=settings.max_wait
            )
            return CheckedPacker(window, self.limits, max_wait=settings.max_wait)
        best_fit = BestFitPacker(
            self.limits, open_packs=settings.open_packs, buffer_size=settings.buffer_size, max_wait=settings.max_wait
        )
        return CheckedPacker(best_fit, self.limits, max_wait=settings.max_wait)

    def _padded(self) -> Iterator[Batch]:
        """Rows of ``micro_batch_size`` samples; one whose media fail is replaced by the next. The last may be short."""
        size = self.config.loader.micro_batch_size
        rows: list[Row] = []
        waiting: list[EncodedSample] = []
        for sample in self._samples():
            waiting.append(sample)
            if len(rows) + len(waiting) < size:
                continue
            rows += self._load(waiting)
            waiting = []
            if len(rows) == size:
                yield from self._collated(rows)
                rows = []
        yield from self._collated([*rows, *self._load(waiting)])

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
                sample = self._encode(item)
            except SampleError as error:
                self.policy.skip(error.with_key(item["__key__"]), stage="encode", source=shard)
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

    def _encode(self, raw: RawSample) -> EncodedSample:
        try:
            sample = self.encoder.encode_sample(raw)
        except SampleError:
            raise
        except Exception:
            logger.error("a bug (no SampleError) came up at sample %r of %s", raw["__key__"], raw["__url__"])
            raise
        if self.config.loader.layout == "packed":
            self._check_fit(sample)
        return sample

    def _cost(self, sample: EncodedSample) -> Cost:
        return Cost(aligned(sample.num_tokens, self.config.packing.segment_multiple), sample.num_patches)

    def _check_fit(self, sample: EncodedSample) -> None:
        cost = self._cost(sample)
        if cost.tokens > self.limits.tokens:
            reason = f"has {sample.num_tokens} tokens ({cost.tokens} aligned), a pack holds {self.limits.tokens}"
            hint = "raise pack_length, or set the encoder's max_length and overlong='truncate'"
            raise BudgetError(reason, key=sample.key, code="pack.too_long", hint=hint)
        if not self.limits.admit(cost.tokens, cost.patches):
            reason = f"has {cost.patches} vision patches, a pack holds {self.limits.patches}"
            raise BudgetError(reason, key=sample.key, code="pack.too_many_patches", hint="raise max_patches")
        if cost.tokens < 1:
            raise BudgetError("has no tokens", key=sample.key, code="pack.empty")

    def _load(self, samples: Sequence[EncodedSample]) -> list[Row]:
        """The rows of the samples whose media load; the others are skipped by policy.

        All go through ``encoder.batch`` at once. If that fails, each goes alone: so each failure is charged to its own
        sample, whatever key the error names and however many samples share a key.
        """
        if not samples:
            return []
        try:
            rows = self._rows(samples)
        except SampleError as error:
            rows = self._load_each(samples, error)
        for _ in rows:
            self.policy.passed("media")
        return rows

    def _load_each(self, samples: Sequence[EncodedSample], group_error: SampleError) -> list[Row]:
        rows: list[Row] = []
        for sample in samples:
            try:
                rows += self._rows([sample])
            except SampleError as error:
                self.policy.skip(error.with_key(sample.key), stage="media", source=sample.source)
        if len(rows) == len(samples):  # no sample is at fault, so the encoder is
            raise group_error
        return rows

    def _rows(self, samples: Sequence[EncodedSample]) -> list[Row]:
        rows = self.encoder.batch(samples)
        if len(rows) != len(samples):
            raise BatchError(
                f"encoder.batch made {len(rows)} rows of {len(samples)} samples, the first of which is"
                f" {samples[0].key!r}: it must return one row per sample"
            )
        return rows

    def _collated(self, rows: Sequence[Row]) -> Iterator[Batch]:
        """One batch, or none where no row is left."""
        if not rows:
            return
        settings, packing = self.config.loader, self.config.packing
        fixed = settings.layout == "packed" and packing.pad_to_length
        yield self.encoder.collate(
            rows,
            layout=settings.layout,
            label_shift=settings.label_shift,
            pad_to_multiple_of=settings.pad_to_multiple_of,
            segment_multiple=packing.segment_multiple,
            length=packing.pack_length if fixed else None,
        )


def no_good_samples(num_skipped: int, counts: Mapping[str, int]) -> str:
    """What to say when not one sample came through."""
    code = max(counts, key=lambda name: counts[name])
    return (
        f"all {num_skipped} samples that were read failed, most often with {code} ({counts[code]} times): mend the data"
        " or the settings (the quarantine file, if one is set, names each sample)"
    )
