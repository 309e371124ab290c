"""A feed and an encoder go in, the length of every sample comes out, no image decoded; kept in files, by chunk."""

from __future__ import annotations

import hashlib
import json
import logging
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from importlib.metadata import version
from pathlib import Path
from traceback import format_exc

import numpy as np
from numpy.typing import NDArray
from torch.utils.data import IterableDataset
from tqdm import tqdm

from packloom.config import DataConfig
from packloom.datasets.aux_media import AuxLibrary
from packloom.datasets.policy import ErrorPolicy, SkipRecord
from packloom.errors import PackloomError, PlanError, ReadError, SampleError
from packloom.loader.delivery import Delivery
from packloom.loader.feed import LaneFeed
from packloom.loader.fingerprint import encoder_fingerprint
from packloom.loader.plan_parquet import read_parquet, write_parquet
from packloom.loader.processes import WorkerTraceback, handed_over, run_workers, worker_place
from packloom.loader.stages import Encoder, Stages, make_policy

logger = logging.getLogger(__name__)

#: Samples whose lengths are kept in one file: what an interrupted run has to measure again, for each worker.
CHUNK = 4096
_COLUMNS = ("tokens", "patches", "has_media")


@dataclass(frozen=True, kw_only=True)
class Lengths:
    """What samples take, before any alignment. ``tokens`` is 0 where a sample is bad (``faults`` says why) or empty."""

    tokens: NDArray[np.int32]  # [K]
    patches: NDArray[np.int32]  # [K]
    has_media: NDArray[np.bool_]  # [K]
    faults: Mapping[int, SkipRecord] = field(default_factory=dict)  # by place
    num_measured: int = 0  # that were not in the cache


def measure_lengths(
    feed: LaneFeed,
    encoder: Encoder,
    config: DataConfig,
    library: AuxLibrary,
    *,
    cache_dir: str | Path,
    progress: bool = False,
) -> Lengths:
    """The lengths of all samples of ``feed``: those in the cache, and the others measured by the config's workers.

    The cache is known by the content of the dataset and by what ``encoder_fingerprint`` tells of the encoder. A chunk
    in which a sample could not be read is measured anew each time, since a shard may have been mended. Raises
    TooManyErrors at the limits of the config's error policy, CapabilityError without pyarrow.
    """
    folder = Path(cache_dir) / _cache_key(feed, encoder, library)
    starts = range(0, feed.num_samples, CHUNK)
    chunks = {start: chunk for start in starts if (chunk := _read_chunk(_path(folder, start))) is not None}
    num_known = sum(chunk.tokens.size for chunk in chunks.values())
    missing = [start for start in starts if start not in chunks]
    stream = _LengthStream(feed, encoder, config, library, missing)
    total = feed.num_samples - num_known
    with tqdm(total=total, unit="sample", desc="lengths", disable=None if progress else True, file=sys.stderr) as bar:
        for start, chunk in _measured(stream, config) if missing else ():
            chunks[start] = chunk
            if not any(record.stage == "read" for record in chunk.faults.values()):
                _write_chunk(_path(folder, start), chunk)
            bar.update(chunk.tokens.size)
    parts = [chunks[start] for start in starts]
    columns = {name: np.concatenate([getattr(part, name) for part in parts]) for name in _COLUMNS}
    faults = {
        start + place: record
        for start, part in zip(starts, parts, strict=True)
        for place, record in part.faults.items()
    }
    return Lengths(**columns, faults=faults, num_measured=total)


@dataclass(frozen=True, kw_only=True)
class _ChunkDelivery(Delivery):
    start: int = 0
    chunk: Lengths | None = None


class _LengthStream(IterableDataset[_ChunkDelivery]):
    """Each worker measures every so manyth chunk."""

    def __init__(
        self, feed: LaneFeed, encoder: Encoder, config: DataConfig, library: AuxLibrary, starts: Sequence[int]
    ) -> None:
        super().__init__()
        library.prepare()
        # A length is what the encoder makes of a sample; whether it fits a pack is the plan's to say.
        loader = replace(config.loader, layout="padded", dummy_media="off")
        self._config = replace(config, loader=loader)
        self._feed, self._encoder, self._library, self._starts = feed, encoder, library, starts

    def __iter__(self) -> Iterator[_ChunkDelivery]:
        return handed_over(self._deliveries())

    def _deliveries(self) -> Iterator[_ChunkDelivery]:
        number, num_workers = worker_place()
        policy = make_policy(self._config.loader)
        stages = Stages(self._encoder, self._config, policy, aux=self._library)
        for start in self._starts[number::num_workers]:
            try:
                yield _ChunkDelivery(start=start, chunk=_measure(self._feed, stages, policy, start))
            except PackloomError as error:
                yield _ChunkDelivery(failure=error, traceback=format_exc())
                return


def _measured(stream: _LengthStream, config: DataConfig) -> Iterator[tuple[int, Lengths]]:
    for delivery in run_workers(stream, config.loader, seed=config.source.seed):
        if delivery.failure is not None:
            raise delivery.failure from (WorkerTraceback(delivery.traceback) if config.loader.num_workers else None)
        if delivery.chunk is not None:
            yield delivery.start, delivery.chunk


def _measure(feed: LaneFeed, stages: Stages, policy: ErrorPolicy, start: int) -> Lengths:
    stop = min(start + CHUNK, feed.num_samples)
    rows = np.zeros((3, stop - start), dtype=np.int32)
    faults = {}
    for place, number in enumerate(range(start, stop)):
        try:
            sample = stages.encode(feed.read(number), epoch=0, offset=feed.offset_of(number))
        except (ReadError, SampleError) as error:
            stage = "read" if isinstance(error, ReadError) else "encode"
            policy.skip(error, stage=stage, source=feed.place_of(number))  # type: ignore[arg-type]
            [faults[place]] = policy.take_records()
            continue
        policy.passed("encode")
        rows[:, place] = sample.num_tokens, sample.num_patches, bool(sample.media)
    return Lengths(tokens=rows[0], patches=rows[1], has_media=rows[2].astype(bool), faults=faults)


def _cache_key(feed: LaneFeed, encoder: Encoder, library: AuxLibrary) -> str:
    facts = [version("packloom"), feed.fingerprint, encoder_fingerprint(encoder), library.facts]
    return hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()[:32]


def _path(folder: Path, start: int) -> Path:
    return folder / f"{start:012d}.parquet"


def _write_chunk(path: Path, chunk: Lengths) -> None:
    columns = {name: getattr(chunk, name) for name in _COLUMNS}
    faults = {str(place): asdict(record) for place, record in chunk.faults.items()}
    write_parquet(path, {"faults": faults}, [columns])


def _read_chunk(path: Path) -> Lengths | None:
    """None where it is not there, or not readable."""
    if not path.exists():
        return None
    try:
        file = read_parquet(path)
        columns, faults = file.read(0), file.header["faults"]
    except PlanError as error:
        logger.warning("%s; its samples are measured again", error)
        return None
    return Lengths(
        tokens=columns["tokens"],
        patches=columns["patches"],
        has_media=columns["has_media"],
        faults={int(place): SkipRecord(**record) for place, record in faults.items()},
    )
