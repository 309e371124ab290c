"""WebDataset tars enter, with or without an index, a source leaves whose rows are whole samples."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from packloom.datasets.convert.source import SourceRow, digest, in_chunks
from packloom.datasets.dataset import ShardDataset, open_dataset
from packloom.datasets.energon_meta import energon_shard_names
from packloom.datasets.folders import select_shards
from packloom.datasets.index_build import build_index
from packloom.datasets.paths import join
from packloom.errors import ReadError, SampleError, ShardError
from packloom.types import RawSample

_HERE = re.compile(r"\A(?:\./)+")


@dataclass(frozen=True, kw_only=True)
class TarSource:
    """The good samples of all shards in order, then one row per bad sample or damaged place."""

    shards: tuple[str, ...]
    index_dir: str | None
    num_rows: int
    identity: str
    has_unique_keys: bool
    clashing: frozenset[tuple[int, str]]  # (shard, key) of which it would have two once their ``./`` is dropped
    kind: str = "tar"
    columns: None = None
    keeps_unknown: bool = True
    segments: None = None
    media_root: None = None

    def rows(self, numbers: np.ndarray, columns: Sequence[str]) -> Iterator[SourceRow | SampleError]:
        dataset = open_dataset(self.shards, index_dir=self.index_dir)
        faults = [fault for _, fault in dataset.faults()] if self.num_rows > len(dataset) else []

        def read(chunk: np.ndarray) -> tuple[list[SourceRow | SampleError], int]:
            good = [number for number in chunk.tolist() if number < len(dataset)]
            samples = dict(zip(good, dataset.read_many(good), strict=True))
            rows: list[SourceRow | SampleError] = []
            num_bytes = 0
            for number in chunk.tolist():
                sample = samples[number] if number < len(dataset) else faults[number - len(dataset)]
                if isinstance(sample, ReadError):
                    rows.append(sample)
                    continue
                num_bytes += sum(len(part) for part in sample.values())
                rows.append(self._row(dataset, number, sample))
            return rows, num_bytes

        return in_chunks(numbers, read)

    def _row(self, dataset: ShardDataset, number: int, sample: RawSample) -> SourceRow | SampleError:
        """The sample under its own key; where keys occur more than once, that of its shard stands in front."""
        own = sample["__key__"]
        key = _plain_key(own)
        shard = dataset.locate(number)[0]
        if (shard, key) in self.clashing:
            reason = f"its shard has the key {key!r} twice, with './' in front and without"
            return SampleError(reason, key=own, code="convert.ambiguous_key", hint="rename the members of one")
        if not self.has_unique_keys:
            key = f"{shard:06d}/{key}"
        return SourceRow(number=number, values=sample, key=key)


def find_tars(path: Path | str, scratch: Path) -> TarSource:
    """The samples of a folder of tars, a tar or a brace pattern. What has no index gets one in ``scratch``.

    Raises ShardError for a path without shards and for shards that cannot be read.
    """
    shards = _shard_paths(path)
    try:
        index_dir, dataset = None, open_dataset(shards)
    except ShardError:  # no index, or one of other shards
        index_dir = str(scratch / "source-index")
        report = build_index(shards, index_dir=index_dir)
        if report.failures:
            shard, reason = report.failures[0]
            raise ShardError(f"{len(report.failures)} shard(s) cannot be read, e.g. {shard}: {reason}") from None
        dataset = open_dataset(shards, index_dir=index_dir)
    return TarSource(
        shards=tuple(shards),
        index_dir=index_dir,
        num_rows=len(dataset) + dataset.num_faults,
        identity=digest("tar", dataset.fingerprint),
        has_unique_keys=_has_unique_keys(dataset),
        clashing=_clashing_keys(dataset),
    )


def _shard_paths(path: Path | str) -> list[str]:
    """All shards of a path, those that an Energon split leaves out too."""
    selections = select_shards(path)
    if len(selections) > 1:
        raise ShardError(f"{path} names shards of {len(selections)} folders: convert each folder by itself")
    folder, names = selections[0].folder, selections[0].names
    if names is None:
        names = tuple(energon_shard_names(folder) or sorted(item.name for item in Path(folder).glob("[!.]*.tar")))
    if not names:
        raise ShardError(f"folder {folder} holds no .tar shards")
    return [join(folder, name) for name in names]


def _plain_key(key: str) -> str:
    """Without the ``./`` that ``tar -C folder .`` puts in front of every name; all else stays as it is."""
    return _HERE.sub("", key)


def _clashing_keys(dataset: ShardDataset) -> frozenset[tuple[int, str]]:
    """Shards have each key once as it stands; written as one key, two samples would become one."""
    found: set[tuple[int, str]] = set()
    for shard in range(dataset.num_shards):
        keys = dataset.keys(shard)
        if any(map(_HERE.match, keys)):
            found.update((shard, key) for key, count in Counter(map(_plain_key, keys)).items() if count > 1)
    return frozenset(found)


def _has_unique_keys(dataset: ShardDataset) -> bool:
    """By 64-bit digests; to take two keys for equal by chance only makes keys longer."""
    digests = [
        np.array([int(digest(key)[:16], 16) for key in map(_plain_key, dataset.keys(shard))], np.uint64)
        for shard in range(dataset.num_shards)
    ]
    joined = np.concatenate(digests) if digests else np.zeros(0, np.uint64)
    return len(np.unique(joined)) == len(joined)
