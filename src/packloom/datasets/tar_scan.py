"""An open tar shard enters, one entry per sample key leaves: its members, or the ReadError that it stands for."""

from __future__ import annotations

import tarfile
from dataclasses import replace

from packloom.datasets.tar_groups import REPAIR, Entry, make_entries
from packloom.datasets.tar_walk import (
    HEADER_ERRORS,
    Damage,
    Headers,
    SampleBytes,
    ShardFile,
    check_end,
    find_header,
    walk,
)
from packloom.errors import ReadError

_MAGIC = {b"\x1f\x8b": "gzip", b"BZh": "bzip2", b"\xfd7zXZ": "xz", b"\x28\xb5\x2f\xfd": "zstandard"}


def scan_shard(file: ShardFile | SampleBytes, path: str, *, max_member_bytes: int) -> list[Entry]:
    """Read every header of a shard, no payload: one entry per key in the order of first appearance.

    Behind a damaged place it goes on at the next sound header.
    """
    items: list[tarfile.TarInfo | Damage] = []
    start: int | None = 0
    while start is not None:
        file.seek(start)
        try:
            tar = tarfile.TarFile(fileobj=Headers(file))  # type: ignore[arg-type]
        except HEADER_ERRORS as error:
            reason, end = f"is damaged near byte {start}: {error}", file.tell()
            damage = Damage(code="read.header", reason=reason, offset=start, end=end)
            found: list[tarfile.TarInfo | Damage] = [damage]
            file.seek(0)
            if start == 0 and (is_packed(head := file.read(8)) or find_header(file, damage) is None):
                return [Entry(key=path, fault=not_a_tar(head, path, error))]
        else:
            found = list(walk(tar, file, check_end))
        start = None
        if found and isinstance(last := found[-1], Damage) and last.code != "read.truncated":
            start = find_header(file, last)
            found[-1] = replace(last, resumes=start)
        items += found
    return make_entries(items, path, max_member_bytes)


def is_packed(start: bytes) -> bool:
    return start.startswith(tuple(_MAGIC))


def not_a_tar(start: bytes, path: str, error: Exception) -> ReadError:
    """What is wrong with a file that begins with ``start``, other than a tar."""
    packed = next((name for magic, name in _MAGIC.items() if start.startswith(magic)), None)
    if packed:
        reason = f"shard {path} is compressed with {packed}"
        return ReadError(reason, key=path, code="read.compressed", hint="unpack it: shards are plain tar files")
    return ReadError(f"shard {path} is not a tar file: {error}", key=path, code="read.not_tar", hint=REPAIR)
