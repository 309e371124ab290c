"""A feed and an encoder go in, what each sample takes comes out, no image decoded; kept in files, by chunk."""

from __future__ import annotations

import hashlib
import json
import logging
import sys
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from importlib.metadata import version
from itertools import pairwise
from pathlib import Path
from traceback import format_exc
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch.utils.data import IterableDataset
from tqdm import tqdm

from packloom.config import DataConfig
from packloom.datasets.aux_media import AuxLibrary
from packloom.datasets.policy import ErrorPolicy, SkipRecord, Stage
from packloom.errors import PackloomError, PlanError, ReadError, SampleError
from packloom.loader.delivery import Delivery
from packloom.loader.feed import LaneFeed
from packloom.loader.fingerprint import encoder_fingerprint
from packloom.loader.heads import read_heads
from packloom.loader.plan_parquet import read_parquet, write_parquet
from packloom.loader.processes import WorkerTraceback, run_workers, worker_place
from packloom.loader.stages import Encoder, Stages, make_policy

logger = logging.getLogger(__name__)

#: Samples whose lengths are kept in one file: what an interrupted run has to measure again, at most.
CHUNK = 4096
#: Samples that a worker measures at a time.
PIECE = 32
#: Of the files: another one makes the old files strangers.
_FORMAT = 2
_COLUMNS = {
    "tokens": np.int32,
    "patches": np.int32,
    "media_tokens": np.int32,
    "loss_tokens": np.int32,
    "has_media": np.bool_,
}


@dataclass(frozen=True, kw_only=True, eq=False)
class Lengths:
    """What samples take, before any alignment: a row for each that was looked at (K rows).

    All numbers are 0 where a sample is bad (``faults`` says why); ``tokens`` is 0 where it is empty, too.
    """

    total: int  # samples of the dataset
    numbers: NDArray[np.integer]  # [K] places in the dataset
    tokens: NDArray[np.integer]  # [K] media tokens included
    patches: NDArray[np.integer]  # [K] vision patches
    media_tokens: NDArray[np.integer]  # [K]
    loss_tokens: NDArray[np.integer]  # [K] that are trained on
    has_media: NDArray[np.bool_]  # [K]
    faults: Mapping[int, SkipRecord] = field(default_factory=dict)  # by row
    num_measured: int = 0  # that were not in the cache

    @property
    def is_exact(self) -> bool:
        """Whether every sample of the dataset was looked at."""
        return len(self.numbers) == self.total

    @property
    def good(self) -> NDArray[np.bool_]:
        """[K]: those without a fault."""
        good = np.ones(len(self.numbers), dtype=np.bool_)
        good[list(self.faults)] = False
        return good

    @property
    def refused(self) -> Counter[str]:
        """How many samples have a fault, by code."""
        return Counter(record.code for record in self.faults.values())


def measure_lengths(
    feed: LaneFeed,
    encoder: Encoder,
    config: DataConfig,
    library: AuxLibrary,
    *,
    numbers: Sequence[int] | None = None,
    cache_dir: str | Path | None = None,
    progress: bool = False,
) -> Lengths:
    """The lengths of all samples of ``feed``, or of ``numbers`` (rising): cached ones, and what workers measure.

    The cache is known by the content of the dataset and by what ``encoder_fingerprint`` tells of the encoder; it grows
    by whole chunks. One in which a sample could not be read is measured anew each time, since a shard may have been
    mended. Raises TooManyErrors at the limits of the config's error policy, CapabilityError for a cache without
    pyarrow.
    """
    folder = None if cache_dir is None else Path(cache_dir) / _cache_key(feed, encoder, library)
    table = _Table(feed.num_samples, np.arange(feed.num_samples) if numbers is None else np.array(numbers, np.int64))
    missing = [rows for rows in table.chunks() if not table.fill_from(folder, rows)]
    pieces = [(rows, range(start, min(start + PIECE, rows.stop))) for rows in missing for start in rows[::PIECE]]
    left = {rows: len(rows) for rows in missing}
    total = sum(left.values())
    stream = _LengthStream(feed, encoder, config, library, [table.numbers[own.start : own.stop] for _, own in pieces])
    with tqdm(total=total, unit="sample", desc="lengths", disable=None if progress else True, file=sys.stderr) as bar:
        for number, measured in _measured(stream, config) if pieces else ():
            rows, own = pieces[number]
            table.fill(own, measured)
            left[rows] -= len(own)
            if not left[rows] and folder is not None:
                table.write(folder, rows)
            bar.update(len(own))
    return Lengths(
        total=feed.num_samples, numbers=table.numbers, **table.columns, faults=table.faults, num_measured=total
    )


@dataclass(frozen=True, kw_only=True)
class _Measured:
    """Of some samples in order."""

    columns: Mapping[str, NDArray[Any]]
    faults: Mapping[int, SkipRecord]  # by place among them


class _Table:
    """The lengths so far. A chunk is the rows whose numbers lie between two multiples of ``CHUNK``."""

    def __init__(self, total: int, numbers: NDArray[np.int64]) -> None:
        self.numbers = numbers
        self.columns: dict[str, NDArray[Any]] = {name: np.zeros(numbers.size, kind) for name, kind in _COLUMNS.items()}
        self.faults: dict[int, SkipRecord] = {}
        self._total = total

    def chunks(self) -> list[range]:
        """The rows of each chunk that has any."""
        places = self.numbers // CHUNK
        edges = [0, *(np.flatnonzero(np.diff(places)) + 1).tolist(), self.numbers.size]
        return [range(start, stop) for start, stop in pairwise(edges) if start < stop]

    def fill(self, rows: range, found: _Measured) -> None:
        for name, values in found.columns.items():
            self.columns[name][rows.start : rows.stop] = values
        self.faults.update({rows[place]: record for place, record in found.faults.items()})

    def fill_from(self, folder: Path | None, rows: range) -> bool:
        """Fill the rows of a chunk from the cache; whether they are there."""
        first, size = self._chunk(rows)
        found = None if folder is None else _read_chunk(_path(folder, first), size)
        if found is None:
            return False
        places = self.numbers[rows.start : rows.stop] - first
        chosen = {name: values[places] for name, values in found.columns.items()}
        faults = {row: found.faults[place] for row, place in enumerate(places.tolist()) if place in found.faults}
        self.fill(rows, _Measured(columns=chosen, faults=faults))
        return True

    def write(self, folder: Path, rows: range) -> None:
        """Keep a chunk, if it is whole and all of it could be read."""
        first, size = self._chunk(rows)
        faults = {row - rows.start: self.faults[row] for row in rows if row in self.faults}
        if len(rows) < size or any(record.stage == "read" for record in faults.values()):
            return
        columns = {name: values[rows.start : rows.stop] for name, values in self.columns.items()}
        header = {"faults": {str(place): asdict(record) for place, record in faults.items()}}
        write_parquet(_path(folder, first), header, [columns])

    def _chunk(self, rows: range) -> tuple[int, int]:
        """(first number, samples) of the chunk that the rows are of."""
        first = int(self.numbers[rows.start]) // CHUNK * CHUNK
        return first, min(CHUNK, self._total - first)


@dataclass(frozen=True, kw_only=True)
class _PieceDelivery(Delivery):
    piece: int = 0
    measured: _Measured | None = None


class _LengthStream(IterableDataset[_PieceDelivery]):
    """Each worker measures every so manyth piece."""

    def __init__(
        self,
        feed: LaneFeed,
        encoder: Encoder,
        config: DataConfig,
        library: AuxLibrary,
        pieces: Sequence[NDArray[np.int64]],
    ) -> None:
        super().__init__()
        library.prepare()
        # A length is what the encoder makes of a sample; whether it fits a pack is for others to say.
        loader = replace(config.loader, layout="padded", dummy_media="off")
        self._config = replace(config, loader=loader)
        self._feed, self._encoder, self._library, self._pieces = feed, encoder, library, pieces

    def __iter__(self) -> Iterator[_PieceDelivery]:
        return self._deliveries()

    def _deliveries(self) -> Iterator[_PieceDelivery]:
        first, num_workers = worker_place()
        policy = make_policy(self._config.loader)
        stages = Stages(self._encoder, self._config, policy, aux=self._library)
        for piece in range(first, len(self._pieces), num_workers):
            try:
                measured = _measure(self._feed, stages, policy, self._pieces[piece].tolist())
            except PackloomError as error:
                yield _PieceDelivery(failure=error, traceback=format_exc())
                return
            yield _PieceDelivery(piece=piece, measured=measured)


def _measured(stream: _LengthStream, config: DataConfig) -> Iterator[tuple[int, _Measured]]:
    for delivery in run_workers(stream, config.loader, seed=config.source.seed):
        if delivery.failure is not None:
            raise delivery.failure from (WorkerTraceback(delivery.traceback) if config.loader.num_workers else None)
        if delivery.measured is not None:
            yield delivery.piece, delivery.measured


def _measure(feed: LaneFeed, stages: Stages, policy: ErrorPolicy, numbers: list[int]) -> _Measured:
    columns: dict[str, NDArray[Any]] = {name: np.zeros(len(numbers), kind) for name, kind in _COLUMNS.items()}
    faults = {}
    for place, (number, raw) in enumerate(zip(numbers, read_heads(feed, numbers, stages.encoder), strict=True)):
        try:
            if isinstance(raw, ReadError):
                raise raw
            sample = stages.encode(raw, epoch=0, offset=feed.offset_of(number))
        except SampleError as error:
            stage: Stage = "read" if isinstance(error, ReadError) else "encode"
            policy.skip(error, stage=stage, source=feed.place_of(number), dataset=feed.leaf_of(number))
            [faults[place]] = policy.take_records()
            continue
        policy.passed("encode")
        columns["tokens"][place], columns["patches"][place] = sample.num_tokens, sample.num_patches
        columns["media_tokens"][place] = sum(item.num_tokens for item in sample.media)
        columns["loss_tokens"][place] = int(sample.loss_mask.sum())
        columns["has_media"][place] = bool(sample.media)
    return _Measured(columns=columns, faults=faults)


def _cache_key(feed: LaneFeed, encoder: Encoder, library: AuxLibrary) -> str:
    facts = [_FORMAT, version("packloom"), feed.fingerprint, encoder_fingerprint(encoder), library.facts]
    return hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()[:32]


def _path(folder: Path, start: int) -> Path:
    return folder / f"{start:012d}.parquet"


def _read_chunk(path: Path, size: int) -> _Measured | None:
    """None where it is not there, or not readable."""
    if not path.exists():
        return None
    try:
        file = read_parquet(path)
        columns, faults = file.read(0), file.header["faults"]
    except PlanError as error:
        logger.warning("%s; its samples are measured again", error)
        return None
    if set(columns) != set(_COLUMNS) or any(len(values) != size for values in columns.values()):
        logger.warning("%s has other lengths than were looked for; its samples are measured again", path)
        return None
    return _Measured(columns=columns, faults={int(place): SkipRecord(**record) for place, record in faults.items()})
