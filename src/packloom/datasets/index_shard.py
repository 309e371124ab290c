"""One local tar shard enters, its index leaves: what stands where, its checksums and image sizes, what is wrong."""

from __future__ import annotations

import hashlib
import os
import zlib
from collections.abc import Iterator, Sequence

from packloom.datasets.index import Member, ShardIndex, make_index
from packloom.datasets.tar_groups import Entry
from packloom.datasets.tar_scan import scan_shard
from packloom.datasets.tar_walk import ShardFile
from packloom.errors import ShardError
from packloom.image_size import image_size

_CHUNK = 1 << 20
#: An image's header is looked for in this many bytes of a larger part.
HEADER_BYTES = 64 << 20
#: Parts of any size are indexed; who reads them sets a limit.
_NO_LIMIT = 1 << 62


def index_shard(path: str, *, name: str) -> ShardIndex:
    """Index one local tar; ``name`` is what its faults call it.

    Samples and faults are those of ``read_shard``. Every byte is read: the headers first, then all of it in one pass
    for the digests. Raises OSError if the file cannot be read, ShardError if it changes meanwhile.
    """
    with ShardFile(path) as file:
        before = os.fstat(file.fileno())
        entries = scan_shard(file, name, max_member_bytes=_NO_LIMIT)
        facts, digest = _read_through(file, entries)
        after = os.fstat(file.fileno())
    if (before.st_size, before.st_mtime_ns) != (after.st_size, after.st_mtime_ns):
        raise ShardError(f"shard {path} changed while it was being indexed: index it once nobody writes to it")
    samples = [
        (entry.key, [Member(part, m.offset_data, m.size, *facts[m.offset_data]) for part, m in entry.members.items()])
        for entry in entries
        if entry.fault is None
    ]
    faults = [entry.fault for entry in entries if entry.fault is not None]
    return make_index(samples, shard_bytes=after.st_size, mtime_ns=after.st_mtime_ns, sha256=digest, faults=faults)


def _read_through(file: ShardFile, entries: Sequence[Entry]) -> tuple[dict[int, tuple[int, int, int]], str]:
    """(crc32, width, height) of each payload by its offset, and the sha256 of the whole file."""
    digest = hashlib.sha256()
    facts: dict[int, tuple[int, int, int]] = {}
    file.seek(0)
    for offset, size in sorted((m.offset_data, m.size) for entry in entries for m in entry.members.values()):
        for chunk in _chunks(file, offset - file.tell()):
            digest.update(chunk)
        head, crc = b"", 0
        for chunk in _chunks(file, size):
            digest.update(chunk)
            crc = zlib.crc32(chunk, crc)
            head = head or chunk
        facts[offset] = crc, *image_size(head)
    for chunk in _chunks(file, file.size - file.tell()):
        digest.update(chunk)
    return facts, digest.hexdigest()


def _chunks(file: ShardFile, size: int) -> Iterator[bytes]:
    """The next ``size`` bytes; the first chunk is large enough for an image's header."""
    limit = HEADER_BYTES
    while size > 0:
        chunk = file.read(min(size, limit))
        if not chunk:
            raise OSError(f"the file ends {size} bytes too early")
        yield chunk
        size -= len(chunk)
        limit = _CHUNK
