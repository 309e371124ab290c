"""The stages that every path shares: raw samples become encoded ones, costs, rows with their media, and batches."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Protocol

from packloom.config import DataConfig, LoaderConfig
from packloom.datasets.aux_media import AuxLibrary
from packloom.datasets.policy import ErrorPolicy, Stage
from packloom.errors import BatchError, BudgetError, ConfigError, ReadError, SampleError
from packloom.loader.stage_times import StageTimes
from packloom.packing import (
    BestFitPacker,
    CheckedPacker,
    Cost,
    Packer,
    PackerFactory,
    PackFunction,
    PackLimits,
    WindowPacker,
    aligned,
)
from packloom.packing.cost import StepCost
from packloom.rng import derive_seed
from packloom.task_encoders import TaskEncoder
from packloom.types import AuxPlace, Batch, EncodedSample, LabelShift, Layout, RawSample, Row

logger = logging.getLogger(__name__)


def make_policy(settings: LoaderConfig) -> ErrorPolicy:
    """The error policy of one worker."""
    return ErrorPolicy(
        on_error=settings.on_error,
        max_consecutive=settings.max_consecutive_errors,
        max_fraction=settings.max_error_fraction,
        min_samples=settings.min_error_samples,
    )


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


class Stages:
    """An encoder under the settings of a pipeline and its error policy.

    ``aux`` has the media that are no parts of their samples; who only encodes needs none.
    """

    def __init__(
        self, encoder: Encoder, config: DataConfig, policy: ErrorPolicy, *, aux: AuxLibrary | None = None
    ) -> None:
        self.encoder = encoder
        self.config = config
        self.policy = policy
        self.aux = aux or AuxLibrary()
        self.times = StageTimes()
        self.limits = PackLimits((config.packing.pack_length or 1) - self._room_for_dummy(), config.packing.max_patches)

    def encode(self, raw: RawSample, *, epoch: int, offset: int | None = None) -> EncodedSample:
        """One sample, which fits a pack. Raises SampleError with the sample's key, and ``offset``, its place.

        What the encoder does at random comes from ``rng.sample_generator``: ``raw["__seed__"]``, and ``seed`` of the
        encoded sample, are made of seed, epoch and key.
        """
        dataset = str(raw.get("__dataset__", ""))  # a dataset that is in a blend twice gives streams of its own
        seed = derive_seed(self.config.source.seed, epoch, raw["__key__"], *([dataset] if dataset else []))
        try:
            with self.times.spent("encode"):
                sample = self.encoder.encode_sample({**raw, "__seed__": seed})
            if self.config.loader.layout == "packed":
                self._check_fit(sample)
        except SampleError as error:
            raise error.with_key(raw["__key__"]).with_offset(offset) from error
        except Exception:
            logger.error("a bug (no SampleError) came up at sample %r of %s", raw["__key__"], raw["__url__"])
            raise
        source = sample.source or str(raw["__url__"])
        return replace(sample, seed=seed, epoch=epoch, dataset=dataset, offset=offset, source=source)

    def cost(self, sample: EncodedSample) -> Cost:
        """What a sample takes of a pack."""
        tokens = aligned(sample.num_tokens, self.config.packing.segment_multiple)
        if sample.media and tokens <= (self.config.packing.pack_length or 1):
            # A pack with it needs no dummy, so it may take the dummy's room: it then fills the pack alone.
            tokens = min(tokens, self.limits.tokens)
        return Cost(tokens, sample.num_patches)

    @property
    def step_cost(self) -> StepCost:
        """What a training step spends on samples."""
        packing = self.config.packing
        return StepCost(linear=packing.cost_linear, attention=packing.cost_attention, vision=packing.cost_vision)

    def make_packer(self, own: PackFunction | PackerFactory | None) -> CheckedPacker:
        """The packer of the settings, or the user's own."""
        settings, max_wait = self.config.packing, self.config.packing.max_wait
        packer: Packer
        if own is None:
            open_packs, buffer_size = settings.open_packs, settings.buffer_size
            packer = BestFitPacker(self.limits, open_packs=open_packs, buffer_size=buffer_size, max_wait=max_wait)
        elif isinstance(own, PackerFactory):
            packer = own.make(self.limits)
        else:
            packer = WindowPacker(own, self.limits, window=min(256, max_wait), max_wait=max_wait)
        return CheckedPacker(packer, self.limits, max_wait=max_wait)

    def load(self, samples: Sequence[EncodedSample]) -> list[Row]:
        """The rows of the samples whose media load; the others are skipped by policy.

        Media of aux datasets are fetched first, each once for all samples. Then all go through ``encoder.batch`` at
        once. If that fails, each goes alone: so each failure is charged to its own sample, whatever key the error
        names and however many samples share a key.
        """
        with self.times.spent("read"):
            samples = self._fetched(samples)
        if not samples:
            return []
        try:
            rows = self._rows(samples)
        except SampleError as error:
            rows = self._load_each(samples, error)
        self.policy.passed("media", len(rows))
        return rows

    def collate(self, rows: Sequence[Row]) -> Batch:
        """One batch of the layout that was asked for; a SampleError of the encoder is for ``sift``."""
        with self.times.spent("collate"):
            batch = self._collated(rows)
        self.policy.passed("collate", len(rows))
        return batch

    def sift(self, rows: Sequence[Row], error: SampleError) -> list[Row]:
        """The rows less those that are to blame for an ``error`` of ``collate``, which are skipped by policy.

        To blame are those that fail alone; if none does, the one that the error names. Raises ``error`` if that is
        none, or not one alone: then the encoder is at fault.
        """
        faults: dict[int, SampleError] = {}
        for place, row in enumerate(rows):
            try:
                self._collated([row])
            except SampleError as own:
                faults[place] = own
        named = [place for place, row in enumerate(rows) if row.sample.key == error.key]
        if not faults and len(named) == 1:
            faults[named[0]] = error
        if not faults:
            raise error
        for place, fault in faults.items():
            sample = rows[place].sample
            self._skip(fault.with_key(sample.key), sample, stage="collate")
        return [row for place, row in enumerate(rows) if place not in faults]

    def _collated(self, rows: Sequence[Row]) -> Batch:
        settings, packing = self.config.loader, self.config.packing
        fixed = settings.layout == "packed" and packing.pad_to_length
        collate = self.encoder.collate
        if isinstance(self.encoder, TaskEncoder):
            dummy_media = settings.dummy_media
            collate = partial(self.encoder.collate, expand_pixels=settings.expand_pixels, dummy_media=dummy_media)
        return collate(
            rows,
            layout=settings.layout,
            label_shift=settings.label_shift,
            pad_to_multiple_of=settings.pad_to_multiple_of,
            segment_multiple=packing.segment_multiple,
            length=packing.pack_length if fixed else None,
        )

    def _room_for_dummy(self) -> int:
        """Tokens of a pack that are kept free, since only a whole pack shows whether it needs a dummy medium."""
        loader, packing = self.config.loader, self.config.packing
        if loader.dummy_media == "off":
            return 0
        if not isinstance(self.encoder, TaskEncoder):
            raise ConfigError(f"dummy_media needs a TaskEncoder, which can make one; got {type(self.encoder).__name__}")
        room = aligned(self.encoder.dummy.sample.num_tokens, packing.segment_multiple)
        if loader.layout == "packed" and room >= (packing.pack_length or 1):
            raise ConfigError(f"a dummy medium takes {room} tokens, and pack_length is {packing.pack_length}: raise it")
        return room if loader.layout == "packed" else 0

    def _check_fit(self, sample: EncodedSample) -> None:
        cost = self.cost(sample)
        if cost.tokens > self.limits.tokens:
            reason = f"has {sample.num_tokens} tokens ({cost.tokens} aligned), a pack holds {self.limits.tokens}"
            hint = "raise pack_length, or set the encoder's max_length and overlong='truncate'"
            raise BudgetError(reason, key=sample.key, code="pack.too_long", hint=hint)
        if not self.limits.admit(cost.tokens, cost.patches):
            reason = f"has {cost.patches} vision patches, a pack holds {self.limits.patches}"
            raise BudgetError(reason, key=sample.key, code="pack.too_many_patches", hint="raise max_patches")
        if cost.tokens < 1:
            raise BudgetError("has no tokens", key=sample.key, code="pack.empty")

    def _load_each(self, samples: Sequence[EncodedSample], group_error: SampleError) -> list[Row]:
        rows: list[Row] = []
        for sample in samples:
            try:
                rows += self._rows([sample])
            except SampleError as error:
                self._skip(error.with_key(sample.key), sample)
        if len(rows) == len(samples):  # no sample is at fault, so the encoder is
            raise group_error
        return rows

    def _fetched(self, samples: Sequence[EncodedSample]) -> list[EncodedSample]:
        """The samples with the bytes of their aux media; those that lack any are skipped."""
        media = [item.media for sample in samples for item in sample.media]
        found = self.aux.fetch(item.aux for item in media if item.aux is not None and not item.data)
        if not found:
            return list(samples)
        whole = []
        for sample in samples:
            try:
                whole.append(_with_bytes(sample, found))
            except ReadError as error:
                self._skip(error, sample)
        return whole

    def _skip(self, error: SampleError, sample: EncodedSample, *, stage: Stage = "media") -> None:
        placed = error.with_offset(sample.offset)
        self.policy.skip(placed, stage=stage, source=sample.source, epoch=sample.epoch, dataset=sample.dataset)

    def _rows(self, samples: Sequence[EncodedSample]) -> list[Row]:
        with self.times.spent("media"):
            rows = self.encoder.batch(samples)
        if len(rows) != len(samples):
            raise BatchError(
                f"encoder.batch made {len(rows)} rows of {len(samples)} samples, the first of which is"
                f" {samples[0].key!r}: it must return one row per sample"
            )
        return rows


def _with_bytes(sample: EncodedSample, found: Mapping[AuxPlace, bytes | ReadError]) -> EncodedSample:
    """The sample with what was found of its media. Raises ReadError, with its key, for what could not be read."""
    media = []
    for item in sample.media:
        data = found.get(item.media.aux, item.media.data) if item.media.aux is not None else item.media.data
        if isinstance(data, ReadError):
            raise ReadError(f"{item.media.name}: {data.reason}", key=sample.key, code=data.code, hint=data.hint)
        media.append(item if data is item.media.data else replace(item, media=replace(item.media, data=data)))
    return replace(sample, media=tuple(media))
