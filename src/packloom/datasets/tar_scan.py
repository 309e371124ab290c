"""An open tar shard enters, one entry per sample key leaves: its members, or the ReadError that it stands for."""

from __future__ import annotations

import io
import logging
import os
import re
import tarfile
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import groupby
from types import MappingProxyType

from webdataset.tariterators import base_plus_ext

from packloom.errors import ReadError

logger = logging.getLogger(__name__)

_REPAIR = "write the shard again"
_META = re.compile(r"__[^/]*__($|/)")  # webdataset skips these names
_MAGIC = {b"\x1f\x8b": "gzip", b"BZh": "bzip2", b"\xfd7zXZ": "xz", b"\x28\xb5\x2f\xfd": "zstandard"}
#: What tarfile raises on damaged headers, by fuzzing it: its own errors, bad numbers in them, and chains of them.
_HEADER_ERRORS = (tarfile.TarError, OSError, ValueError, OverflowError, LookupError, RecursionError)


@dataclass(frozen=True, kw_only=True, slots=True)
class Entry:
    """One sample key of a shard: its members by part name, or what is wrong with it."""

    key: str
    members: Mapping[str, tarfile.TarInfo] = field(default_factory=lambda: MappingProxyType({}))
    fault: ReadError | None = None


class ShardFile(io.BufferedReader):
    """A file that is never asked for more than it holds, whatever size a damaged header claims."""

    def __init__(self, path: str) -> None:
        super().__init__(io.FileIO(path, "rb"))
        self.size = os.fstat(self.fileno()).st_size

    def read(self, size: int | None = -1, /) -> bytes:
        if size is None or size < 0:
            raise ValueError(f"impossible size {size}")
        return super().read(min(size, max(0, self.size - self.tell())))


class SampleBytes(io.BytesIO):
    """The bytes of one sample, headers included, as a shard of its own: an end mark follows them."""

    def __init__(self, data: bytes) -> None:
        super().__init__(data + bytes(-len(data) % tarfile.BLOCKSIZE + 2 * tarfile.BLOCKSIZE))
        self.size = len(self.getbuffer())


def scan_shard(
    file: ShardFile | SampleBytes, path: str, *, max_member_bytes: int
) -> tuple[list[Entry], tarfile.TarFile | None]:
    """Read every header of a shard, no payload: one entry per key in the order of first appearance, and the tar."""
    try:
        tar = tarfile.TarFile(fileobj=file)
    except _HEADER_ERRORS as error:
        return [Entry(key=path, fault=_not_a_tar(file, path, error))], None
    members, damage = _walk(tar, file)
    named = _name_members(members, path)
    groups = [(key, [item[1:] for item in run]) for key, run in groupby(named, key=lambda item: item[0])]
    runs = Counter(key for key, _ in groups)
    cut_off = groups.pop() if damage and groups else None
    entries: dict[str, Entry] = {}
    for key, run in groups:
        if key not in entries:
            entries[key] = _entry(key, run, path, runs[key], max_member_bytes)
    found = list(entries.values())
    if damage:
        found.append(Entry(key=cut_off[0] if cut_off else path, fault=_damage_error(damage, path, cut_off, members)))
    return found, tar


@dataclass(frozen=True, kw_only=True, slots=True)
class _Damage:
    code: str
    reason: str


def _walk(tar: tarfile.TarFile, file: ShardFile | SampleBytes) -> tuple[list[tarfile.TarInfo], _Damage | None]:
    """All members up to the end or to the first damage. tarfile itself ends at some damage as if all were well."""
    members: list[tarfile.TarInfo] = []
    # nothing but zeros; asked again, Python 3.10 seeks in front of the file
    if tar.firstmember is None:  # type: ignore[attr-defined]
        return members, _check_end(file, tar.offset)
    while True:
        try:
            member = tar.next()
        except _HEADER_ERRORS as error:
            code = "read.truncated" if tar.offset > file.size else "read.header"
            return members, _Damage(code=code, reason=f"is damaged near byte {tar.offset}: {error}")
        if member is None:
            return members, _check_end(file, tar.offset)
        if member.size < 0 or tar.offset <= member.offset:
            return members, _Damage(code="read.header", reason=f"has an impossible size at byte {member.offset}")
        members.append(member)


def _check_end(file: ShardFile | SampleBytes, offset: int) -> _Damage | None:
    """A whole tar ends in at least one block of zeros, and nothing but zeros follows."""
    file.seek(offset)
    block = file.read(tarfile.BLOCKSIZE)
    if len(block) < tarfile.BLOCKSIZE:
        return _Damage(code="read.truncated", reason=f"is cut off at byte {offset + len(block)}, without an end mark")
    if any(block):
        return _Damage(code="read.header", reason=f"has an unreadable header at byte {offset}")
    while block := file.read(1 << 16):
        if any(block):
            return _Damage(code="read.trailing_data", reason=f"goes on after the end mark at byte {offset}")
    return None


def _name_members(members: list[tarfile.TarInfo], path: str) -> list[tuple[str, str, tarfile.TarInfo]]:
    """(key, part name, member) by webdataset's rule; folders, its ``__x__`` names and names without a dot drop out."""
    named = []
    ignored = []
    for member in members:
        if member.isdir() or _META.match(member.name):
            continue
        key, part = base_plus_ext(member.name)
        if key is None:
            ignored.append(member.name)
        else:
            named.append((key, part, member))
    if ignored:
        logger.warning("shard %s: ignored %d member(s) without key.part name, e.g. %r", path, len(ignored), ignored[0])
    return named


def _entry(key: str, run: list[tuple[str, tarfile.TarInfo]], path: str, num_runs: int, max_member_bytes: int) -> Entry:
    def bad(code: str, reason: str, hint: str = _REPAIR) -> Entry:
        return Entry(key=key, fault=ReadError(f"{reason} in shard {path}", key=key, code=code, hint=hint))

    if num_runs > 1:
        hint = f"{_REPAIR} with the members of each sample side by side"
        return bad("read.not_adjacent", f"its members stand in {num_runs} separate places", hint)
    members: dict[str, tarfile.TarInfo] = {}
    for part, member in run:
        name = part.lower()
        if name.startswith("__"):
            return bad("read.reserved_name", f"member {member.name} takes a reserved name")
        if not member.isreg():
            return bad("read.special_member", f"member {member.name} is a link or a device, not a file")
        if member.size > max_member_bytes:
            reason = f"member {member.name} has {member.size} bytes, over the limit of {max_member_bytes},"
            return bad("read.member_too_large", reason, "raise the limit or take the sample out")
        if name in members:
            same = members[name].name == member.name
            code = "read.duplicate_member" if same else "read.case_collision"
            reason = f"members {members[name].name} and {member.name} are both part {name!r}"
            return bad(code, reason)
        members[name] = member
    return Entry(key=key, members=members)


def _damage_error(
    damage: _Damage,
    path: str,
    cut_off: tuple[str, list[tuple[str, tarfile.TarInfo]]] | None,
    members: list[tarfile.TarInfo],
) -> ReadError:
    lost = "this sample may be incomplete, and all behind it are lost" if cut_off else "all its samples are lost"
    last = f" after member {members[-1].name}" if members else ""
    reason = f"shard {path} {damage.reason}{last}: {lost}"
    return ReadError(reason, key=cut_off[0] if cut_off else path, code=damage.code, hint=_REPAIR)


def _not_a_tar(file: ShardFile | SampleBytes, path: str, error: Exception) -> ReadError:
    file.seek(0)
    start = file.read(8)
    packed = next((name for magic, name in _MAGIC.items() if start.startswith(magic)), None)
    if packed:
        reason = f"shard {path} is compressed with {packed}"
        return ReadError(reason, key=path, code="read.compressed", hint="unpack it: shards are plain tar files")
    return ReadError(f"shard {path} is not a tar file: {error}", key=path, code="read.not_tar", hint=_REPAIR)
