"""A tar that is only read forwards (stdin, a url that cannot seek) enters, its samples leave as they come.

What cannot be known without looking ahead is not known here: a sample whose members stand in separate places arrives
in its first part, and only the later ones are refused; and of a damaged header both neighbours are refused.
"""

from __future__ import annotations

import tarfile
from collections import deque
from collections.abc import Iterator
from dataclasses import replace

from packloom.datasets.files import ByteStream
from packloom.datasets.tar_groups import Group, damage_error, make_entry, name_member
from packloom.datasets.tar_scan import not_a_tar
from packloom.datasets.tar_walk import HEADER_ERRORS, Damage, TarSource, find_header, walk
from packloom.errors import ReadError
from packloom.types import RawSample

_CHUNK = 1 << 20
#: A header over this is a damaged one; payloads have a limit of their own.
_MAX_HEADER_BYTES = 1 << 20
#: What can be read a second time: tarfile looks twice at a block now and then.
_KEPT_BYTES = 2 * tarfile.BLOCKSIZE
#: Keys that are remembered, to tell that members of one sample stand in separate places.
_NUM_KEYS = 1 << 16


def read_stream(
    stream: ByteStream, path: str, *, first: int, step: int, max_member_bytes: int
) -> Iterator[RawSample | ReadError]:
    """What ``read_shard`` gives for a tar, in the order of the stream, and with one sample in memory at a time.

    Tars that follow one another (``cat *.tar``) are read as one.
    """
    file = ForwardFile(stream)
    reader = _Reader(path, max_member_bytes)
    number = 0
    for item in _walk_tars(file, path):
        is_own = number % step == first
        if isinstance(item, Damage) and item.resumes is not None:
            reader.note(item)
            continue
        if isinstance(item, (ReadError, Damage)):
            if is_own:
                yield reader.cut_off(item) if isinstance(item, Damage) else item
            return
        if reader.is_complete_before(item):
            if is_own:
                yield reader.sample()
            reader.begin()
            number += 1
        if item is not None:
            reader.add(item, file, wanted=number % step == first)
    if reader.untold is not None and number % step == first:
        yield damage_error(reader.untold, path, None, "")


def _walk_tars(file: ForwardFile, path: str) -> Iterator[tarfile.TarInfo | Damage | ReadError | None]:
    """The members of one tar after the other, None behind each, up to the end or to what cannot be read."""
    while file.tell() == 0 or not file.at_end():
        start = file.tell()
        resumes: int | None = start
        try:
            tar = tarfile.TarFile(fileobj=file)  # type: ignore[arg-type]
        except HEADER_ERRORS as error:
            file.seek(start)
            yield not_a_tar(file.read(8), path, error)
            return
        for item in walk(tar, file, _skip_end):
            tar.members.clear()  # type: ignore[attr-defined]  # it would keep them all
            if isinstance(item, Damage):
                resumes = _resume(file, item)
                yield replace(item, resumes=resumes)
                break
            yield item
        else:
            yield None
        if resumes is None:
            return


def _resume(file: ForwardFile, damage: Damage) -> int | None:
    """Go on to the next sound header; the place, or None where there is none."""
    if damage.code == "read.truncated":
        return None
    read = -(-file.tell() // tarfile.BLOCKSIZE) * tarfile.BLOCKSIZE
    start = find_header(file, max(damage.offset + tarfile.BLOCKSIZE, read))
    if start is not None:
        file.seek(start)
    return start


def _skip_end(file: TarSource, offset: int) -> Iterator[Damage]:
    """Go behind the end mark of a tar and the zeros that fill it up, to the end or to the next one."""
    file.seek(offset)
    block = file.read(tarfile.BLOCKSIZE)
    if len(block) < tarfile.BLOCKSIZE:
        yield Damage(
            code="read.truncated",
            reason=f"is cut off at byte {offset + len(block)}, without an end mark",
            offset=offset,
        )
        return
    if any(block):
        yield Damage(code="read.header", reason=f"has an unreadable header at byte {offset}", offset=offset)
        return
    start = offset
    while not any(block):
        offset += len(block)
        block = file.read(tarfile.BLOCKSIZE)
        if not block:
            return
    file.seek(offset)
    if offset - start == tarfile.BLOCKSIZE:  # an end mark has two: this was a header
        yield Damage(code="read.header", reason=f"has an empty header at byte {start}", offset=start)


class ForwardFile:
    """A stream with the face of a file that tarfile needs; a step back goes no further than ``_KEPT_BYTES``."""

    def __init__(self, stream: ByteStream) -> None:
        self._stream = stream
        self._kept = b""  # the last bytes that were read
        self._back = 0  # how many of them are to be given again
        self._read = 0  # bytes read from the stream
        self._ended = False

    @property
    def size(self) -> int:
        """Bytes in all; without limit as long as the end was not seen."""
        return self._read if self._ended else 1 << 62

    def tell(self) -> int:
        return self._read - self._back

    def at_end(self) -> bool:
        """Whether nothing follows; reads a little to know."""
        peeked = self.read(1)
        self._back += len(peeked)
        return self._ended

    def seek(self, offset: int) -> int:
        distance = offset - self.tell()
        if distance < 0:
            if self._back - distance > len(self._kept):
                raise OSError(f"a stream cannot go back from byte {self.tell()} to {offset}")
            self._back -= distance
        while distance > 0 and (chunk := self.read(min(distance, _CHUNK))):
            distance -= len(chunk)
        return self.tell()

    def read(self, size: int) -> bytes:
        """Up to ``size`` bytes, less only at the end."""
        if not 0 <= size <= _MAX_HEADER_BYTES:
            raise ValueError(f"impossible size {size}")
        return b"".join(self.chunks(size))

    def chunks(self, size: int) -> Iterator[bytes]:
        """The next ``size`` bytes in pieces."""
        if self._back:
            start = len(self._kept) - self._back
            piece = self._kept[start : start + size]
            self._back -= len(piece)
            size -= len(piece)
            yield piece
        while size > 0 and not self._ended:
            piece = self._stream.read(min(size, _CHUNK))
            self._ended = not piece
            self._read += len(piece)
            self._kept = (self._kept + piece[-_KEPT_BYTES:])[-_KEPT_BYTES:]
            size -= len(piece)
            yield piece


class _Reader:
    """Collects the members of one sample after the other."""

    def __init__(self, path: str, max_member_bytes: int) -> None:
        self._path = path
        self._max_member_bytes = max_member_bytes
        self._key: str | None = None
        self._run: list[tuple[str, tarfile.TarInfo]] = []
        self._payloads: list[bytes] = []
        self._last_name = ""
        self._damage: Damage | None = None  # beside the sample that is being read
        self._behind: Damage | None = None  # since its last member, or since the end of the one before
        self.untold: Damage | None = None  # that no sample was refused for
        self._seen: set[str] = set()
        self._order: deque[str] = deque()

    def is_complete_before(self, member: tarfile.TarInfo | None) -> bool:
        """Whether the sample that is being read ends before this member, or (None) with the tar."""
        named = None if member is None else name_member(member)
        return self._key is not None and (member is None or (named is not None and named[0] != self._key))

    def add(self, member: tarfile.TarInfo, file: ForwardFile, *, wanted: bool) -> None:
        self._last_name = member.name
        named = name_member(member)
        if named is None:
            return
        self._damage, self._behind = self._damage or self._behind, None
        self._key = named[0]
        self._run.append((named[1], member))
        readable = member.isreg() and not member.issparse() and member.size <= self._max_member_bytes
        if wanted and readable:
            file.seek(member.offset_data)
            self._payloads.append(b"".join(file.chunks(member.size)))
        else:
            self._payloads.append(b"")

    def sample(self) -> RawSample | ReadError:
        """The sample that is complete."""
        key = self._key or ""
        num_runs = 1 + (key in self._seen)
        self._remember(key)
        if self._damage is not None:
            self.untold = None
            if Group(key=key, run=self._run).is_vague:
                self._behind = self._behind or self._damage  # the name may be none, so that the next one is torn
            return damage_error(self._damage, self._path, key, "")
        entry = make_entry(key, self._run, self._path, num_runs, self._max_member_bytes)
        if entry.fault is not None:
            return entry.fault
        sample: RawSample = {"__key__": key, "__url__": self._path}
        for (part, _), data in zip(self._run, self._payloads, strict=True):
            sample[part.lower()] = data
        return sample

    def note(self, damage: Damage) -> None:
        """Something is lost here: the sample that is being read, and the next one, may be incomplete."""
        self._behind = self.untold = damage
        if self._key is not None:
            self._damage = damage

    def begin(self) -> None:
        """Let go of it."""
        self._key, self._run, self._payloads, self._damage = None, [], [], None

    def cut_off(self, damage: Damage) -> ReadError:
        """What the end of a damaged stream costs: the sample that was being read, and all behind it."""
        return damage_error(damage, self._path, self._key, self._last_name)

    def _remember(self, key: str) -> None:
        self._seen.add(key)
        self._order.append(key)
        if len(self._order) > _NUM_KEYS:
            self._seen.discard(self._order.popleft())
