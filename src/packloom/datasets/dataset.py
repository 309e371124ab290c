"""Folders of indexed shards enter, a dataset leaves whose samples are read one by one from anywhere."""

from __future__ import annotations

import logging
import os
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from itertools import accumulate

import numpy as np

from packloom.datasets.access import OpenShard, ReadPlan, ReadSettings, ShardSource
from packloom.datasets.files import Files
from packloom.datasets.folders import Paths, check_index_dir, select_shards
from packloom.datasets.manifest import make_fingerprint
from packloom.datasets.shards import MAX_MEMBER_BYTES
from packloom.datasets.sources import find_sources
from packloom.errors import ReadError
from packloom.types import RawSample

logger = logging.getLogger(__name__)

#: What the indexes of the shards used last may take in memory, per dataset and process.
INDEX_CACHE_BYTES = 64 << 20


def open_dataset(
    path: Paths,
    *,
    index_dir: str | os.PathLike[str] | None = None,
    split_part: str | None = None,
    verify: bool = True,
    max_member_bytes: int = MAX_MEMBER_BYTES,
    index_cache_bytes: int = INDEX_CACHE_BYTES,
) -> ShardDataset:
    """Open indexed shards: a folder, a tar, a brace pattern, or a list of these (read one after the other).

    Paths are local or urls that fsspec reads (s3, gcs, http, memory, ...). Only the manifests are read here. A folder
    that Energon prepared (``.nv-meta``) opens as it is: the shards of ``split_part`` (``train`` if it is None), less
    what its split file excludes.

    With ``verify`` the bytes of every part are compared with the checksum in the index, so that a shard which was
    damaged or cut off since then loses just the samples that were hit, each with a ReadError. A part over
    ``max_member_bytes`` is not read. ``index_dir`` is where ``packloom index --index-dir`` put the index.

    Raises ShardError for a folder without an index, for shards that came, went or grew since it was made, and for a
    shard that is listed twice; the message says what to run. Without ``verify`` also for one of another size or
    content.
    """
    selections = select_shards(path)
    sources = find_sources(selections, index_dir=check_index_dir(selections, index_dir), split_part=split_part)
    num_faults = sum(source.num_faults for source in sources)
    if num_faults:
        logger.warning("%d bad samples or damaged places are left out of the dataset: see faults()", num_faults)
    settings = ReadSettings(verify=verify, max_member_bytes=max_member_bytes)
    return ShardDataset(sources, settings=settings, index_cache_bytes=index_cache_bytes)


class ShardDataset:
    """Samples of indexed shards by position or by (shard, index); for a torch DataLoader a map-style dataset.

    A position counts through the good samples of all shards in order. In memory are one small object per shard, and
    the indexes of the shards used last up to ``index_cache_bytes``. With 10,000 shards of 1,000 samples that is about
    10 MB and at most 64 MiB (``python benchmarks/index_scale.py`` measures it); there is no table of all samples.

    May be pickled (for spawned workers), carried into forked ones, and used by several threads.
    """

    def __init__(
        self,
        sources: Sequence[ShardSource],
        *,
        settings: ReadSettings | None = None,
        index_cache_bytes: int = INDEX_CACHE_BYTES,
    ) -> None:
        self._sources = tuple(sources)
        self._settings = settings or ReadSettings()
        self._index_cache_bytes = index_cache_bytes
        self._ends = list(accumulate(source.num_samples for source in self._sources))
        self._files = Files()
        self._open: dict[int, tuple[OpenShard, int]] = {}  # with its size; the one used last stands last
        #: A digest of the content, whatever the path; of an Energon folder, of its names, counts and sample offsets.
        self.fingerprint = make_fingerprint(source.identity for source in self._sources)

    def __reduce__(self) -> tuple[object, ...]:
        return _rebuild, (self._sources, self._settings, self._index_cache_bytes)

    def __len__(self) -> int:
        return self._ends[-1] if self._ends else 0

    def __getitem__(self, position: int) -> RawSample:
        """The sample at a position; raises IndexError, ReadError, ShardError."""
        return self.read(*self.locate(position + len(self) if position < 0 else position))

    def __iter__(self) -> Iterator[RawSample]:
        return (self[position] for position in range(len(self)))

    @property
    def num_shards(self) -> int:
        return len(self._sources)

    @property
    def shard_lengths(self) -> np.ndarray:
        """[num_shards] int64, good samples per shard."""
        return np.array([source.num_samples for source in self._sources], dtype=np.int64)

    @property
    def num_faults(self) -> int:
        """What the index leaves out: bad samples, and one more for damage to a shard."""
        return sum(source.num_faults for source in self._sources)

    def faults(self) -> Iterator[tuple[str, ReadError]]:
        """(shard path, what is wrong) for each of them; reads the index of the shards that have any."""
        return ((source.path, fault) for source in self._sources for fault in source.faults())

    def shard_path(self, shard: int) -> str:
        return self._sources[shard].path

    def locate(self, position: int) -> tuple[int, int]:
        """(shard, index in it) of a position; raises IndexError."""
        if not 0 <= position < len(self):
            raise IndexError(f"position {position} is not in 0..{len(self) - 1}")
        shard = bisect_right(self._ends, position)
        return shard, position - (self._ends[shard - 1] if shard else 0)

    def position(self, shard: int, index: int) -> int:
        """The position of (shard, index); raises IndexError."""
        self._check(shard, index)
        return index + (self._ends[shard - 1] if shard else 0)

    def key(self, shard: int, index: int) -> str:
        """The key of a sample; of an Energon folder this reads the sample."""
        return self._shard(shard, index).key(index)

    def keys(self, shard: int) -> list[str]:
        """The keys of a shard in order; of an Energon folder this reads the shard."""
        return self._shard(shard, 0).keys() if self._sources[shard].num_samples else []

    def part_names(self, shard: int, index: int) -> tuple[str, ...]:
        """The parts of a sample; of an Energon folder this reads the sample."""
        return self._shard(shard, index).part_names(index)

    def image_size(self, shard: int, index: int, part: str) -> tuple[int, int] | None:
        """(width, height) in pixels as the image is shown; None for what is no image, or where no index of ours is."""
        return self._shard(shard, index).image_size(index, part)

    def offset(self, shard: int, index: int) -> int | None:
        """The byte of the shard where the sample's first part begins; None where the index cannot be reached.

        In an Energon folder, that of its first header.
        """
        try:
            return self._shard(shard, index).offset(index)
        except ReadError:
            return None

    def read(self, shard: int, index: int, *, parts: Sequence[str] | None = None) -> RawSample:
        """The sample as ``read_shard`` gives it, or only some of its parts.

        Raises ReadError (with the key) for bytes that cannot be read or are not those that were indexed and for a part
        that is not there, ShardError for a shard that its index does not fit, IndexError.
        """
        wanted = None if parts is None else tuple(parts)
        opened = self._shard(shard, index)
        plan = opened.plan(index, wanted)
        return opened.assemble(plan, self._files.read_ranges(plan.ranges))

    def read_many(self, positions: Sequence[int], *, parts: Sequence[str] | None = None) -> list[RawSample | ReadError]:
        """What ``read`` gives for each position, a ReadError for a bad sample; urls are fetched concurrently."""
        wanted = None if parts is None else tuple(parts)
        return self.read_each([(position, wanted) for position in positions])

    def read_each(self, wanted: Sequence[tuple[int, tuple[str, ...] | None]]) -> list[RawSample | ReadError]:
        """As ``read_many``, with the parts to read stated for each position."""
        plans = [self._plan(position, parts) for position, parts in wanted]
        blobs = self._files.read_ranges([r for p in plans if not isinstance(p, ReadError) for r in p[1].ranges])
        results: list[RawSample | ReadError] = []
        first = 0
        for item in plans:
            if isinstance(item, ReadError):
                results.append(item)
                continue
            opened, plan = item
            last = first + len(plan.ranges)
            try:
                results.append(opened.assemble(plan, blobs[first:last]))
            except ReadError as error:
                results.append(error)
            first = last
        return results

    def _plan(self, position: int, parts: tuple[str, ...] | None) -> tuple[OpenShard, ReadPlan] | ReadError:
        shard, index = self.locate(position)
        try:
            opened = self._shard(shard, index)
            return opened, opened.plan(index, parts)
        except ReadError as error:
            return error

    def _check(self, shard: int, index: int) -> None:
        if not 0 <= shard < len(self._sources):
            raise IndexError(f"shard {shard} is not in 0..{len(self._sources) - 1}")
        if not 0 <= index < self._sources[shard].num_samples:
            raise IndexError(f"index {index} is not in 0..{self._sources[shard].num_samples - 1} of shard {shard}")

    def _shard(self, shard: int, index: int) -> OpenShard:
        """The shard with its index in memory. Raises ReadError if it cannot be reached, as for a bad sample."""
        self._check(shard, index)
        cached = self._open.pop(shard, None)  # single steps on a dict, so that threads do not need a lock
        if cached is None:
            source = self._sources[shard]
            try:
                opened = source.open(self._files, self._settings)
            except OSError as error:
                reason = f"the shard cannot be opened: {error.strerror or error}"
                raise ReadError(reason, key=source.path, code="read.open") from error
            cached = opened, opened.nbytes
            self._make_room(cached[1])
        self._open[shard] = cached
        return cached[0]

    def _make_room(self, num_bytes: int) -> None:
        cached = list(self._open.items())
        excess = sum(size for _, (_, size) in cached) + num_bytes - self._index_cache_bytes
        for shard, (_, size) in cached:
            if excess <= 0:
                return
            self._open.pop(shard, None)
            excess -= size


def _rebuild(sources: tuple[ShardSource, ...], settings: ReadSettings, index_cache_bytes: int) -> ShardDataset:
    return ShardDataset(sources, settings=settings, index_cache_bytes=index_cache_bytes)
