"""An open tar enters, its members leave in their order, and between them the places that cannot be read."""

from __future__ import annotations

import io
import os
import tarfile
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Protocol

#: What tarfile raises on damaged headers, by fuzzing it: its own errors, bad numbers in them, and chains of them.
HEADER_ERRORS = (tarfile.TarError, OSError, ValueError, OverflowError, LookupError, RecursionError)
#: A header over this is a damaged one; payloads have a limit of their own.
MAX_HEADER_BYTES = 1 << 20
_ENCODING, _NAME_ERRORS = "utf-8", "surrogateescape"


class ShardFile(io.BufferedReader):
    """A file that is never asked for more than it holds, whatever size a damaged header claims."""

    def __init__(self, path: str) -> None:
        super().__init__(io.FileIO(path, "rb"))
        self.size = os.fstat(self.fileno()).st_size

    def read(self, size: int | None = -1, /) -> bytes:
        if size is None or size < 0:
            raise ValueError(f"impossible size {size}")
        return super().read(min(size, max(0, self.size - self.tell())))


class TarSource(Protocol):
    """What headers are read from."""

    @property
    def size(self) -> int: ...

    def seek(self, offset: int, /) -> int: ...

    def tell(self) -> int: ...

    def read(self, size: int, /) -> bytes: ...


class Headers:
    """A file as tarfile sees it, which reads headers only: one that claims gigabytes is none."""

    def __init__(self, file: TarSource) -> None:
        self._file = file
        self.seek = file.seek
        self.tell = file.tell

    def read(self, size: int) -> bytes:
        if not 0 <= size <= MAX_HEADER_BYTES:
            raise ValueError(f"impossible size {size}")
        return self._file.read(size)


@dataclass(frozen=True, kw_only=True, slots=True)
class Damage:
    """A place from which a shard cannot be read."""

    code: str
    reason: str
    offset: int
    resumes: int | None = None  # the next sound header, where reading goes on
    cuts_member: bool = False  # the payload of the member in front of it is not all there
    end: int = 0  # of what was read of a damaged header, and of the headers that belong to it


EndCheck = Callable[[TarSource, int], Iterable[Damage]]


class SampleBytes(io.BytesIO):
    """The bytes of one sample, headers included, as a shard of its own: an end mark follows them."""

    def __init__(self, data: bytes) -> None:
        super().__init__(data + bytes(-len(data) % tarfile.BLOCKSIZE + 2 * tarfile.BLOCKSIZE))
        self.size = len(self.getbuffer())


def walk(tar: tarfile.TarFile, file: TarSource, check_end: EndCheck) -> Iterator[tarfile.TarInfo | Damage]:
    """All members up to the end or to the first damage, which comes last.

    tarfile itself ends at some damage as if all were well: ``check_end(file, offset)`` tells, behind the last member.
    """
    # nothing but zeros; asked again, Python 3.10 seeks in front of the file
    if tar.firstmember is None:  # type: ignore[attr-defined]
        yield from check_end(file, tar.offset)
        return
    while True:
        expected = tar.offset  # of the next header; at the first member this is already the second
        try:
            member = tar.next()
        except HEADER_ERRORS as error:
            code = "read.truncated" if tar.offset > file.size else "read.header"
            reason, cuts_member = f"is damaged near byte {tar.offset}: {error}", expected > file.size
            yield Damage(code=code, reason=reason, offset=expected, cuts_member=cuts_member, end=file.tell())
            return
        if member is None:
            yield from check_end(file, tar.offset)
            return
        if member.size < 0 or tar.offset <= member.offset:
            yield Damage(
                code="read.header", reason=f"has an impossible size at byte {member.offset}", offset=member.offset
            )
            return
        yield member


def check_end(file: TarSource, offset: int) -> Iterator[Damage]:
    """A whole tar ends in at least one block of zeros, and nothing but zeros follows."""
    file.seek(offset)
    block = file.read(tarfile.BLOCKSIZE)
    if len(block) < tarfile.BLOCKSIZE:
        reason = f"is cut off at byte {offset + len(block)}, without an end mark"
        yield Damage(code="read.truncated", reason=reason, offset=offset)
        return
    if any(block):
        yield Damage(code="read.header", reason=f"has an unreadable header at byte {offset}", offset=offset)
        return
    while block := file.read(1 << 16):
        if any(block):
            reason = f"goes on after the end mark at byte {offset}"
            yield Damage(code="read.trailing_data", reason=reason, offset=offset)
            return


def find_header(file: TarSource, damage: Damage) -> int | None:
    """The first place behind a damaged one, in whole blocks, where a sound header stands; None where there is none.

    That is one with the mark of all tar formats since 1988, a right checksum, and a size that the file has room for. A
    tar within the payload of a member that was lost is taken for a part of the shard.
    """
    # Not among what was read already: of a thousand headers in a chain each would be the start of another chain.
    offset = max(damage.offset + tarfile.BLOCKSIZE, -(-damage.end // tarfile.BLOCKSIZE) * tarfile.BLOCKSIZE)
    file.seek(offset)
    while len(block := file.read(tarfile.BLOCKSIZE)) == tarfile.BLOCKSIZE:
        if block[257:262] == b"ustar":
            try:
                info = tarfile.TarInfo.frombuf(block, _ENCODING, _NAME_ERRORS)
            except HEADER_ERRORS:
                info = None
            if info is not None and 0 <= info.size <= file.size - offset:
                return offset
        offset += tarfile.BLOCKSIZE
    return None
