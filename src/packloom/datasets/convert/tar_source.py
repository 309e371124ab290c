"""WebDataset tars enter, with or without an index, a source leaves whose rows are whole samples."""

from __future__ import annotations

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


@dataclass(frozen=True, kw_only=True)
class TarSource:
    """The good samples of all shards in order, then one row per bad sample or damaged place."""

    shards: tuple[str, ...]
    index_dir: str | None
    num_rows: int
    identity: str
    has_unique_keys: bool
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
                rows.append(SourceRow(number=number, values=sample, key=self._key(dataset, number, sample["__key__"])))
            return rows, num_bytes

        return in_chunks(numbers, read)

    def _key(self, dataset: ShardDataset, number: int, key: str) -> str:
        """The sample's own key; where keys occur more than once, that of its shard stands in front."""
        return key if self.has_unique_keys else f"{dataset.locate(number)[0]:06d}/{key}"


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


def _has_unique_keys(dataset: ShardDataset) -> bool:
    """By 64-bit digests; to take two keys for equal by chance only makes keys longer."""
    digests = [
        np.array([int(digest(key)[:16], 16) for key in dataset.keys(shard)], np.uint64)
        for shard in range(dataset.num_shards)
    ]
    joined = np.concatenate(digests) if digests else np.zeros(0, np.uint64)
    return len(np.unique(joined)) == len(joined)
