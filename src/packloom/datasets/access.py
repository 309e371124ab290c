"""A sample's place in an indexed shard enters, the byte ranges to read leave; their bytes enter, its parts leave."""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from packloom.datasets.files import Files, Range
from packloom.datasets.index import Member, ShardIndex
from packloom.datasets.shards import MAX_MEMBER_BYTES
from packloom.errors import ReadError
from packloom.types import RawSample

#: Ranges with a gap up to this many bytes are read as one: tar headers lie between the parts of a sample.
_MAX_GAP = 1 << 14


@dataclass(frozen=True, kw_only=True, slots=True)
class ReadSettings:
    """How samples are read."""

    verify: bool = True  # compare each part's CRC-32 with the index: about 0.5 ms per MB
    max_member_bytes: int = MAX_MEMBER_BYTES  # a larger part is refused before its bytes are read


@dataclass(frozen=True, kw_only=True, slots=True)
class ReadPlan:
    """What to read for one sample, and how the bytes become its parts."""

    index: int
    parts: tuple[str, ...] | None
    ranges: list[Range]
    pieces: tuple[tuple[Member, int], ...] = ()  # each with the number of the range that it lies in


class OpenShard(Protocol):
    """A shard whose index is in memory."""

    @property
    def nbytes(self) -> int: ...  # of the index in memory

    def key(self, index: int) -> str: ...

    def keys(self) -> list[str]: ...

    def part_names(self, index: int) -> tuple[str, ...]: ...

    def image_size(self, index: int, part: str) -> tuple[int, int] | None: ...

    def offset(self, index: int) -> int: ...  # of the first byte that is the sample's

    def plan(self, index: int, parts: tuple[str, ...] | None) -> ReadPlan: ...

    def assemble(self, plan: ReadPlan, blobs: Sequence[bytes | OSError]) -> RawSample: ...


class ShardSource(Protocol):
    """A shard of an opened dataset: small, plain data. ``open`` loads its index."""

    @property
    def path(self) -> str: ...

    @property
    def num_samples(self) -> int: ...

    @property
    def num_faults(self) -> int: ...

    @property
    def identity(self) -> str: ...  # what the dataset's fingerprint is made of

    def open(self, files: Files, settings: ReadSettings) -> OpenShard: ...

    def faults(self) -> tuple[ReadError, ...]: ...


class IndexedShard:
    """A shard with an index of ours."""

    def __init__(self, path: str, index: ShardIndex, settings: ReadSettings, *, next_move: str) -> None:
        self._path = path
        self._index = index
        self._settings = settings
        self._next_move = next_move

    @property
    def nbytes(self) -> int:
        return self._index.nbytes

    def key(self, index: int) -> str:
        return self._index.key(index)

    def keys(self) -> list[str]:
        return [self._index.key(index) for index in range(self._index.num_samples)]

    def part_names(self, index: int) -> tuple[str, ...]:
        return tuple(member.part for member in self._index.members(index))

    def image_size(self, index: int, part: str) -> tuple[int, int] | None:
        """(width, height); None where the part is not there, is no image or has no readable header."""
        sizes = {member.part: (member.width, member.height) for member in self._index.members(index) if member.width}
        return sizes.get(part)

    def offset(self, index: int) -> int:
        return self._index.offset(index)

    def plan(self, index: int, parts: tuple[str, ...] | None) -> ReadPlan:
        members = self._index.members(index)
        if parts is not None:
            members = self._choose(index, members, parts)
        ranges: list[Range] = []
        pieces: list[tuple[Member, int]] = []
        for member in members:
            if member.size > self._settings.max_member_bytes:
                limit = self._settings.max_member_bytes
                reason = f"part {member.part!r} has {member.size} bytes, over the limit of {limit},"
                hint = "raise the limit or take the sample out"
                raise self._error(
                    index, f"{reason} in shard {self._path}", "read.member_too_large", hint, member.offset
                )
            stop = member.offset + member.size
            if ranges and 0 <= member.offset - ranges[-1][2] <= _MAX_GAP:
                ranges[-1] = (self._path, ranges[-1][1], stop)
            else:
                ranges.append((self._path, member.offset, stop))
            pieces.append((member, len(ranges) - 1))
        return ReadPlan(index=index, parts=parts, ranges=ranges, pieces=tuple(pieces))

    def assemble(self, plan: ReadPlan, blobs: Sequence[bytes | OSError]) -> RawSample:
        """The parts of a sample. Raises ReadError for bytes that are missing or not those that were indexed."""
        sample: RawSample = {"__key__": self._index.key(plan.index), "__url__": self._path}
        for member, number in plan.pieces:
            blob = blobs[number]
            if isinstance(blob, OSError):
                reason = f"cannot be read from shard {self._path}: {blob.strerror or blob}"
                raise self._error(
                    plan.index, reason, "read.payload", "check the disk or the connection", member.offset
                ) from blob
            start = member.offset - plan.ranges[number][1]
            data = blob[start : start + member.size]
            if len(data) < member.size:
                reason = f"shard {self._path} ends within part {member.part!r}"
                raise self._error(plan.index, reason, "read.truncated", self._next_move, member.offset)
            if self._settings.verify and zlib.crc32(data) != member.crc32:
                reason = f"the bytes of part {member.part!r} in shard {self._path} are not those that were indexed"
                hint = f"the shard was changed or damaged; if it was changed, {self._next_move}"
                raise self._error(plan.index, reason, "read.checksum", hint, member.offset)
            sample[member.part] = data
        return sample

    def _choose(self, index: int, members: Sequence[Member], parts: tuple[str, ...]) -> list[Member]:
        missing = sorted(set(parts) - {member.part for member in members})
        if missing:
            there = ", ".join(member.part for member in members)
            reason = f"has no part {missing[0]!r}, only {there}"
            raise self._error(index, reason, "read.missing_part", "name parts as the index lists them")
        return [member for member in members if member.part in parts]

    def _error(self, index: int, reason: str, code: str, hint: str, offset: int | None = None) -> ReadError:
        return ReadError(reason, key=self.key(index), code=code, hint=hint, offset=offset)


class FilteredShard:
    """An open shard of which only some samples count: those at the places ``keep``, in this order."""

    def __init__(self, base: OpenShard, keep: Sequence[int]) -> None:
        self._base = base
        self._keep = keep

    @property
    def nbytes(self) -> int:
        return self._base.nbytes

    def key(self, index: int) -> str:
        return self._base.key(self._keep[index])

    def keys(self) -> list[str]:
        keys = self._base.keys()
        return [keys[place] for place in self._keep]

    def part_names(self, index: int) -> tuple[str, ...]:
        return self._base.part_names(self._keep[index])

    def image_size(self, index: int, part: str) -> tuple[int, int] | None:
        return self._base.image_size(self._keep[index], part)

    def offset(self, index: int) -> int:
        return self._base.offset(self._keep[index])

    def plan(self, index: int, parts: tuple[str, ...] | None) -> ReadPlan:
        return self._base.plan(self._keep[index], parts)

    def assemble(self, plan: ReadPlan, blobs: Sequence[bytes | OSError]) -> RawSample:
        return self._base.assemble(plan, blobs)
