"""A tar that is only read forwards (stdin, a url that cannot seek) enters, its samples leave as they come.

What cannot be known without looking ahead is not known here: a sample whose members stand in separate places arrives
in its first part, and only the later ones are refused. Of the samples on both sides of a damaged place those are taken
to be whole that have the parts that all samples so far had (see ``tar_groups``, which knows those behind as well).
"""

from __future__ import annotations

import tarfile
from collections import deque
from collections.abc import Generator, Iterator
from dataclasses import replace
from functools import partial

from packloom.datasets.files import ByteStream
from packloom.datasets.tar_groups import Group, damage_error, make_entry, name_member
from packloom.datasets.tar_scan import is_packed, not_a_tar
from packloom.datasets.tar_walk import HEADER_ERRORS, MAX_HEADER_BYTES, Damage, TarSource, find_header, walk
from packloom.errors import ReadError
from packloom.types import RawSample

_CHUNK = 1 << 20
#: What can be read a second time: tarfile looks twice at a block now and then.
_KEPT_BYTES = 2 * tarfile.BLOCKSIZE
#: Samples that must have had the same parts before one beside damage is taken to be whole since it has them too.
_MIN_ALIKE = 3
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
        if isinstance(item, Damage) and item.resumes is not None:
            reader.note(item)
            continue
        done: list[RawSample | ReadError] = []
        if isinstance(item, Damage):
            done = reader.cut_off(item)
        elif isinstance(item, ReadError):
            done = [item]
        elif reader.is_complete_before(item):
            done = reader.finish(item)
        for found in done:
            if number % step == first:
                yield found
            number += 1
        if isinstance(item, (ReadError, Damage)):
            return
        if item is not None:
            reader.add(item, file, wanted=number % step == first)
    if (last := reader.untold()) is not None and number % step == first:
        yield last


def _walk_tars(file: ForwardFile, path: str) -> Iterator[tarfile.TarInfo | Damage | ReadError | None]:
    """The members of one tar after the other, None behind each, up to the end or to what cannot be read."""
    is_first, is_whole, begin = True, False, 0
    while is_first or not file.at_end():
        start, head = file.tell(), file.read(8)
        file.seek(start)
        begin = start if is_whole else begin
        try:
            tar = tarfile.TarFile(fileobj=file)  # type: ignore[arg-type]
        except HEADER_ERRORS as error:
            damage = Damage(code="read.header", reason=f"is damaged near byte {start}: {error}", offset=start)
            resumes = None if is_first and is_packed(head) else _resume(file, damage)
            yield not_a_tar(head, path, error) if is_first and resumes is None else replace(damage, resumes=resumes)
            is_whole = False
        else:
            if is_whole and tar.firstmember is not None:  # type: ignore[attr-defined]
                yield None  # only now: what seemed to be an end mark may have been a header and zeros
            resumes, is_whole = yield from _walk_tar(tar, file, begin)
        if resumes is None:
            return
        is_first = False
    yield None


def _walk_tar(
    tar: tarfile.TarFile, file: ForwardFile, begin: int
) -> Generator[tarfile.TarInfo | Damage, None, tuple[int | None, bool]]:
    """The members of one tar, or of the rest of one that began at ``begin``; then where reading goes on (None:
    nowhere), and whether its end was reached."""
    for item in walk(tar, file, partial(_skip_end, begin)):
        tar.members.clear()  # type: ignore[attr-defined]  # it would keep them all
        if isinstance(item, Damage):
            resumes = _resume(file, item)
            yield replace(item, resumes=resumes)
            return resumes, False
        yield item
    return file.tell(), True


def _resume(file: ForwardFile, damage: Damage) -> int | None:
    """Go on to the next sound header; the place, or None where there is none."""
    if damage.code == "read.truncated":
        return None
    start = find_header(file, replace(damage, end=max(damage.end, file.tell())))
    if start is not None:
        file.seek(start)
    return start


def _skip_end(begin: int, file: TarSource, offset: int) -> Iterator[Damage]:
    """Go behind the end mark of a tar and the zeros that fill it up, to the end or to the next one."""
    file.seek(offset)
    block = file.read(tarfile.BLOCKSIZE)
    if len(block) < tarfile.BLOCKSIZE:
        reason = f"is cut off at byte {offset + len(block)}, without an end mark"
        yield Damage(code="read.truncated", reason=reason, offset=offset)
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
    # An end mark has two blocks, or fills the record up as well; other zeros were headers, and payloads behind them.
    length, mark = offset - start, 2 * tarfile.BLOCKSIZE
    if length < mark or (length > mark and (offset - begin) % tarfile.RECORDSIZE):
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
        if not 0 <= size <= MAX_HEADER_BYTES:
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
        self._before: Damage | None = None  # in front of the sample that is being read
        self._within: Damage | None = None  # between its members
        self._behind: Damage | None = None  # since its last member, or since the end of the one before
        self._is_suspect = False  # the sample in front of this one had a name that may be none
        self._untold: Damage | None = None  # that no sample was refused for
        self._kinds: set[tuple[str, ...]] = set()  # the parts of samples that stood beside no damage
        self._num_sound = 0  # those samples
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
        if self._run:
            self._within = self._within or self._behind
        else:
            self._before = self._behind
        self._behind = None
        self._key = named[0]
        self._run.append((named[1], member))
        readable = member.isreg() and not member.issparse() and member.size <= self._max_member_bytes
        if wanted and readable:
            file.seek(member.offset_data)
            self._payloads.append(b"".join(file.chunks(member.size)))
        else:
            self._payloads.append(b"")

    def finish(self, member: tarfile.TarInfo | None) -> list[RawSample | ReadError]:
        """The sample that ends before this member, and behind it damage that cost none that can be named."""
        key, group = self._key or "", Group(key=self._key or "", run=self._run)
        damage = self._within or self._before or self._behind
        is_vague = self._before is not None and group.is_vague  # the name may be none, so that the next one is torn
        found: list[RawSample | ReadError]
        if damage is not None and not self._is_whole(group, is_vague=is_vague, member=member):
            found = [damage_error(damage, self._path, key, "")]
            self._untold = None
        else:
            found = [self._sample(key)]
            if damage is None:
                self._num_sound += 1
                if len(self._kinds) < 2:  # two show that samples differ
                    self._kinds.add(group.parts)
            elif self._before is not None and (told := self.untold()) is not None:  # neither side of it was refused
                found.append(told)
        self._remember(key)
        self._is_suspect, self._behind = is_vague, self._behind or (self._before if is_vague else None)
        self._key, self._run, self._payloads, self._before, self._within = None, [], [], None, None
        return found

    def note(self, damage: Damage) -> None:
        """Something is lost here: the sample that is being read, and the next one, may be incomplete."""
        self._behind = self._untold = damage

    def untold(self) -> ReadError | None:
        """Damage that no sample was refused for; it is told once."""
        damage, self._untold = self._untold, None
        return None if damage is None else damage_error(damage, self._path, None, "")

    def cut_off(self, damage: Damage) -> list[RawSample | ReadError]:
        """What comes before the end of a damaged stream, and what that costs: all behind it, and maybe the sample."""
        last, self._behind = self._last_name, damage
        if self._key is None:
            return [damage_error(damage, self._path, None, last)]
        group = Group(key=self._key, run=self._run)
        if damage.cuts_member or not self._is_whole(group, is_vague=group.is_vague, member=None):
            return [damage_error(damage, self._path, self._key, last)]
        return [self._sample(self._key), damage_error(damage, self._path, None, last)]

    def _is_whole(self, group: Group, *, is_vague: bool, member: tarfile.TarInfo | None) -> bool:
        """Whether a sample beside damage has the parts that all others had, under a name that it surely has."""
        is_known = self._within is None and not is_vague and not self._is_suspect and group.key not in self._seen
        if member is not None and self._behind is not None and Group(key="", run=[("", member)]).is_vague:
            is_known = False  # what follows may be torn off this one
        return is_known and self._num_sound >= _MIN_ALIKE and self._kinds == {group.parts}

    def _sample(self, key: str) -> RawSample | ReadError:
        entry = make_entry(key, self._run, self._path, 1 + (key in self._seen), self._max_member_bytes)
        if entry.fault is not None:
            return entry.fault
        sample: RawSample = {"__key__": key, "__url__": self._path}
        for (part, _), data in zip(self._run, self._payloads, strict=True):
            sample[part.lower()] = data
        return sample

    def _remember(self, key: str) -> None:
        self._seen.add(key)
        self._order.append(key)
        if len(self._order) > _NUM_KEYS:
            self._seen.discard(self._order.popleft())
