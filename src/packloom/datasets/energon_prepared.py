"""A shard with Energon's ``.tar.idx`` enters, its samples leave, each parsed from the bytes between two offsets.

``.tar.idx`` holds one u64 in native byte order per sample, where the first header of the sample starts, and one more
for the end of the last. Names and sizes stand in the tar headers, which are read together with the sample.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np

from packloom.datasets.access import OpenShard, ReadPlan, ReadSettings
from packloom.datasets.files import Files, read_file, status
from packloom.datasets.shards import load_sample
from packloom.datasets.tar_scan import scan_shard
from packloom.datasets.tar_walk import SampleBytes
from packloom.errors import ReadError, ShardError
from packloom.types import RawSample


@dataclass(frozen=True, kw_only=True, slots=True)
class EnergonSource:
    """One shard of a folder that Energon prepared; its payloads carry no checksum."""

    path: str
    name: str
    num_samples: int
    folder_digest: str  # of what tells this folder from another with equal names and counts
    next_move: str
    num_faults: int = 0

    @property
    def identity(self) -> str:
        return f"energon {self.folder_digest} {self.name} {self.num_samples}"

    def faults(self) -> tuple[ReadError, ...]:
        return ()

    def open(self, files: Files, settings: ReadSettings) -> OpenShard:
        """Raises OSError if the shard or its ``.tar.idx`` is not there, ShardError if the latter has other samples.

        A shard that was cut off since then opens, and loses the samples that are missing.
        """
        where = self.path + ".idx"
        data = read_file(where)
        offsets = np.frombuffer(data, dtype=np.uint64) if len(data) % 8 == 0 else np.zeros(0, np.uint64)
        if len(offsets) != self.num_samples + 1 or not (offsets[1:] > offsets[:-1]).all():
            raise ShardError(f"{where} does not hold {self.num_samples} samples as .info.json says: {self.next_move}")
        status(self.path)  # whether it is there
        return _EnergonShard(self, offsets, files, settings)


def digest_offsets(paths: Sequence[str], *, next_move: str) -> str:
    """A digest of the first, middle and last ``.tar.idx``: two folders with equal names and counts differ in it."""
    digest = hashlib.sha256()
    for place in sorted({0, len(paths) // 2, len(paths) - 1}):
        try:
            digest.update(read_file(paths[place] + ".idx"))
        except OSError as error:
            raise ShardError(f"{paths[place]}.idx cannot be read: {error}: {next_move}") from error
    return digest.hexdigest()


class _EnergonShard:
    """A shard that was opened; the sample's own headers say what its parts are."""

    def __init__(self, source: EnergonSource, offsets: np.ndarray, files: Files, settings: ReadSettings) -> None:
        self._source = source
        self._offsets = offsets
        self._files = files
        self._settings = settings

    @property
    def nbytes(self) -> int:
        return int(self._offsets.nbytes)

    def key(self, index: int) -> str:
        return str(self._read(index)["__key__"])

    def keys(self) -> list[str]:
        return [self.key(index) for index in range(self._source.num_samples)]

    def part_names(self, index: int) -> tuple[str, ...]:
        return tuple(name for name in self._read(index) if not name.startswith("__"))

    def image_size(self, index: int, part: str) -> tuple[int, int] | None:
        """Energon's offsets say nothing about images."""
        return None

    def offset(self, index: int) -> int:
        return int(self._offsets[index])

    def plan(self, index: int, parts: tuple[str, ...] | None) -> ReadPlan:
        start, stop = self._offsets[index : index + 2].tolist()
        return ReadPlan(index=index, parts=parts, ranges=[(self._source.path, start, stop)])

    def assemble(self, plan: ReadPlan, blobs: Sequence[bytes | OSError]) -> RawSample:
        """The parts of a sample. Raises ReadError for bytes that are not one whole sample."""
        path, start, stop = plan.ranges[0]
        label, blob = f"{path}#{plan.index}", blobs[0]
        bad = partial(ReadError, key=label, hint=self._source.next_move, offset=start)
        if isinstance(blob, OSError):
            raise bad(f"cannot be read: {blob.strerror or blob}", code="read.payload") from blob
        if len(blob) < stop - start:
            raise bad("the shard ends within it", code="read.truncated")
        file = SampleBytes(blob)
        entries = scan_shard(file, path, max_member_bytes=self._settings.max_member_bytes)
        if len(entries) != 1:
            raise bad(f"holds {len(entries)} samples, not one, between bytes {start} and {stop}", code="read.header")
        loaded = entries[0].fault or load_sample(entries[0], file, path)
        if isinstance(loaded, ReadError):
            key, place = label if loaded.key == path else loaded.key, start + (loaded.offset or 0)
            raise ReadError(loaded.reason, key=key, code=loaded.code, hint=loaded.hint, offset=place)
        return loaded if plan.parts is None else _choose(loaded, plan.parts)

    def _read(self, index: int) -> RawSample:
        plan = self.plan(index, None)
        return self.assemble(plan, self._files.read_ranges(plan.ranges))


def _choose(sample: RawSample, parts: Sequence[str]) -> RawSample:
    missing = sorted(set(parts) - set(sample))
    if missing:
        there = ", ".join(name for name in sample if not name.startswith("__"))
        raise ReadError(f"has no part {missing[0]!r}, only {there}", key=sample["__key__"], code="read.missing_part")
    return {name: data for name, data in sample.items() if name.startswith("__") or name in parts}
