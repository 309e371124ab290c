"""The stages that every path shares: raw samples become encoded ones, costs, rows with their media, and batches."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Protocol

from packloom.config import DataConfig
from packloom.datasets.policy import ErrorPolicy
from packloom.errors import BatchError, BudgetError, SampleError
from packloom.packing import BestFitPacker, CheckedPacker, Cost, PackFunction, PackLimits, WindowPacker, aligned
from packloom.rng import derive_seed
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


class Stages:
    """An encoder under the settings of a pipeline and its error policy."""

    def __init__(self, encoder: Encoder, config: DataConfig, policy: ErrorPolicy) -> None:
        self.encoder = encoder
        self.config = config
        self.policy = policy
        self.limits = PackLimits(config.packing.pack_length or 1, config.packing.max_patches)

    def encode(self, raw: RawSample, *, epoch: int) -> EncodedSample:
        """One sample, which fits a pack. Raises SampleError with the sample's key.

        The encoder finds in ``raw["__seed__"]`` a number made of seed, epoch and key, for what it does at random.
        """
        seed = derive_seed(self.config.source.seed, epoch, raw["__key__"])
        try:
            sample = self.encoder.encode_sample({**raw, "__seed__": seed})
        except SampleError as error:
            raise error.with_key(raw["__key__"]) from error
        except Exception:
            logger.error("a bug (no SampleError) came up at sample %r of %s", raw["__key__"], raw["__url__"])
            raise
        if self.config.loader.layout == "packed":
            self._check_fit(sample)
        return sample

    def cost(self, sample: EncodedSample) -> Cost:
        """What a sample takes of a pack."""
        return Cost(aligned(sample.num_tokens, self.config.packing.segment_multiple), sample.num_patches)

    def make_packer(self, function: PackFunction | None) -> CheckedPacker:
        """The packer of the settings, or the user's own."""
        settings = self.config.packing
        if function is not None:
            window = WindowPacker(function, self.limits, window=min(256, settings.max_wait), max_wait=settings.max_wait)
            return CheckedPacker(window, self.limits, max_wait=settings.max_wait)
        best_fit = BestFitPacker(
            self.limits, open_packs=settings.open_packs, buffer_size=settings.buffer_size, max_wait=settings.max_wait
        )
        return CheckedPacker(best_fit, self.limits, max_wait=settings.max_wait)

    def load(self, samples: Sequence[EncodedSample]) -> list[Row]:
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

    def collate(self, rows: Sequence[Row]) -> Batch:
        """One batch of the layout that was asked for."""
        settings, packing = self.config.loader, self.config.packing
        fixed = settings.layout == "packed" and packing.pad_to_length
        return self.encoder.collate(
            rows,
            layout=settings.layout,
            label_shift=settings.label_shift,
            pad_to_multiple_of=settings.pad_to_multiple_of,
            segment_multiple=packing.segment_multiple,
            length=packing.pack_length if fixed else None,
        )

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
