"""Rows, or padded batches, go in; batches of one constant shape for a DSpark draft model come out.

A draft model makes its own future targets. So it gets whole, unshifted ``input_ids`` [B, max_length], a ``loss_mask``
of the same shape that says which of these tokens are trained on, and no labels. Its buffers have a fixed size: every
batch has B rows of ``max_length`` tokens, the last one of an epoch too.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol, cast

import torch
from torch.utils.data import DataLoader, Dataset, Sampler

from packloom.collates.dummy_media import DummyMedia
from packloom.collates.filler import make_filler
from packloom.errors import BatchError, ConfigError, SampleError
from packloom.types import Batch, EncodedSample, LabelShift, Layout, RawSample, Row

logger = logging.getLogger(__name__)


class Encoder(Protocol):
    """What this collate needs of an encoder; ``packloom.TaskEncoder`` is one."""

    @property
    def max_length(self) -> int | None: ...

    @property
    def dummy(self) -> Row: ...

    def encode_sample(self, raw: RawSample) -> EncodedSample: ...

    def batch(self, samples: Sequence[EncodedSample]) -> list[Row]: ...

    def collate(
        self,
        rows: Sequence[Row],
        *,
        layout: Layout,
        label_shift: LabelShift,
        length: int | None,
        dummy_media: DummyMedia,
    ) -> Batch: ...


class PaddedLoader(Protocol):
    """A ``packloom.Loader`` that makes padded batches."""

    @property
    def config(self) -> Any: ...

    def __iter__(self) -> Iterator[Batch]: ...

    def state_dict(self) -> dict[str, Any]: ...

    def load_state_dict(self, state: Mapping[str, Any]) -> None: ...


def dspark_batch(batch: Mapping[str, Any], *, max_length: int) -> dict[str, Any]:
    """A padded batch as a draft model reads it: ``loss_mask`` int64 [B, max_length] in place of labels.

    A dummy medium keeps attention 0 on its tokens. Raises BatchError for a batch that is packed, shifted or of another
    width, and for a sample that nothing is trained on: cut answers do not pass unnoticed.
    """
    if batch.get("layout") != "padded" or batch.get("label_shift") != "none":
        raise BatchError(
            "a DSpark batch is padded and unshifted: want layout 'padded' and label_shift 'none', got"
            f" {batch.get('layout')!r} and {batch.get('label_shift')!r}"
        )
    width = batch["input_ids"].shape[1]
    if width != max_length:
        raise BatchError(f"the batch is {width} tokens wide, a DSpark batch {max_length}: set the loader's length so")
    mask = batch["loss_mask"].to(torch.int64)
    empty = [key for key, row in zip(batch["sample_keys"], mask, strict=False) if key and not row.any()]
    if empty:
        raise BatchError(f"nothing is trained on in the sample(s) {', '.join(map(repr, empty))}: drop such")
    kept = {name: value for name, value in batch.items() if name not in ("labels", "label_shift")}
    return {**kept, "loss_mask": mask}


@dataclass(frozen=True, kw_only=True)
class DSparkCollate:
    """``collate_fn`` of a map-style dataset of raw samples; see ``build_dspark_dataloader``. Picklable."""

    encoder: Encoder
    max_length: int
    batch_size: int
    dummy_media: DummyMedia = "per_batch"
    on_error: Literal["skip", "raise"] = "raise"

    def __post_init__(self) -> None:
        longest = self.encoder.max_length
        room = self.encoder.dummy.sample.num_tokens if self.dummy_media == "per_batch" else 0
        if longest is None or longest + room > self.max_length:
            raise ConfigError(
                f"the encoder's max_length is {longest}; with {room} tokens for a dummy medium"
                f" it must be at most {self.max_length - room}: its overlong policy then decides about the rest"
            )
        if self.on_error not in ("skip", "raise"):
            raise ConfigError(f"on_error must be 'skip' or 'raise', got {self.on_error!r}")

    def __call__(self, raws: Sequence[RawSample]) -> dict[str, Any]:
        """One batch of ``batch_size`` rows; what bad or missing samples leave free is filled with rows that train
        nothing. Raises SampleError for a bad sample under ``on_error="raise"``, BatchError where none is good."""
        rows = [row for raw in raws for row in self._row(raw)]
        if not rows or len(raws) > self.batch_size:
            raise BatchError(f"a batch of {self.batch_size} was given {len(raws)} samples, {len(rows)} of them good")
        fillers = [Row(sample=make_filler(rows[0].sample))] * (self.batch_size - len(rows))
        batch = self.encoder.collate(
            [*rows, *fillers],
            layout="padded",
            label_shift="none",
            length=self.max_length,
            dummy_media=self.dummy_media,
        )
        counts = {
            "source_sample_num": len(rows),
            "num_input_tokens": batch["num_input_tokens"] - len(fillers),
            "sample_keys": batch["sample_keys"][: len(rows)],
        }
        return dspark_batch({**batch, **counts}, max_length=self.max_length)

    def _row(self, raw: RawSample) -> list[Row]:
        try:
            return self.encoder.batch([self.encoder.encode_sample(raw)])
        except SampleError as error:
            if self.on_error == "raise":
                raise
            logger.warning("skipped (%s): %s", error.code, error)
            return []


class DSparkLoader:
    """A packloom loader whose batches are DSpark's; its state is the loader's."""

    def __init__(self, loader: PaddedLoader, *, max_length: int) -> None:
        """Raises ConfigError for a loader whose batches would not all be of one shape."""
        settings = loader.config.loader
        wanted = {"layout": "padded", "label_shift": "none", "pad_to_multiple_of": max_length}
        wrong = {name: getattr(settings, name) for name, value in wanted.items() if getattr(settings, name) != value}
        if wrong:
            raise ConfigError(f"a DSpark loader needs build_loader(..., {_spelled(wanted)}), got {_spelled(wrong)}")
        self.max_length = max_length
        self._loader = loader

    def __iter__(self) -> Iterator[dict[str, Any]]:
        for batch in self._loader:
            yield dspark_batch(batch, max_length=self.max_length)

    def state_dict(self) -> dict[str, Any]:
        """See ``Loader.state_dict``."""
        return self._loader.state_dict()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """See ``Loader.load_state_dict``."""
        self._loader.load_state_dict(state)


def build_dspark_dataloader(
    data: PaddedLoader | Dataset[RawSample] | Sequence[RawSample],
    encoder: Encoder | None = None,
    *,
    max_length: int,
    batch_size: int | None = None,
    dummy_media: DummyMedia = "per_batch",
    on_error: Literal["skip", "raise"] = "raise",
    shuffle: bool = False,
    seed: int = 0,
    sampler: Sampler[int] | None = None,
    num_workers: int = 0,
) -> DSparkLoader | DataLoader[dict[str, Any]]:
    """Batches of one shape over a packloom loader, or, with an ``encoder``, over a map-style dataset of raw samples.

    **A loader** was built with ``layout="padded"``, ``label_shift="none"`` and ``pad_to_multiple_of=max_length``; its
    own ``micro_batch_size``, ``dummy_media``, ``tail`` and error policy hold, and its state resumes.

    **A dataset** needs ``batch_size``. An over-long sample is dropped or cut as the encoder's ``overlong`` says, which
    never cuts media or all that is trained on: what cannot be cut is a bad sample, and ``on_error`` decides. For
    several ranks give a ``torch.utils.data.DistributedSampler`` as ``sampler``.
    """
    if encoder is None:
        return DSparkLoader(cast(PaddedLoader, data), max_length=max_length)
    if batch_size is None or batch_size < 1:
        raise ConfigError(f"a dataset needs batch_size, the number of rows of every batch, got {batch_size}")
    collate = DSparkCollate(
        encoder=encoder, max_length=max_length, batch_size=batch_size, dummy_media=dummy_media, on_error=on_error
    )
    return DataLoader(
        cast("Dataset[RawSample]", data),
        batch_size=batch_size,
        shuffle=shuffle,
        sampler=sampler,
        num_workers=num_workers,
        collate_fn=collate,
        generator=torch.Generator().manual_seed(seed),
    )


def _spelled(settings: Mapping[str, object]) -> str:
    return ", ".join(f"{name}={value!r}" for name, value in settings.items())
