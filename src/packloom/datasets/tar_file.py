"""Keys and parts enter, one tar of reproducible bytes and its index leave; nothing is read back for it."""

from __future__ import annotations

import contextlib
import hashlib
import os
import sys
import zlib
from collections.abc import Mapping
from itertools import islice
from pathlib import Path

from packloom.datasets.index import Member, ShardIndex, make_index
from packloom.datasets.index_shard import HEADER_BYTES
from packloom.datasets.tar_header import archive_bytes, member_header, padded
from packloom.image_size import image_size

_BUFFER = 1 << 18
#: So many bytes are digested and written together. Passing over payloads drops the interpreter from the processor's
#: cache, and what runs next takes twice as long: once for many samples is cheaper than once for each.
_TOGETHER = 4 << 20


class TarFile:
    """A shard that is being written under its hidden name; its index is made on the way."""

    def __init__(self, hidden: Path, final: Path) -> None:
        self.hidden = hidden
        self.final = final
        self.num_bytes = 0  # of members, their headers included
        self._file = hidden.open("wb", buffering=_BUFFER)
        self._digest = hashlib.sha256()
        self._keys: list[tuple[str, int]] = []  # with the number of parts
        self._members: list[Member] = []  # without checksums
        self._checksums: list[int] = []  # of the members that are passed on
        self._waiting: list[tuple[bytes, bytes]] = []  # headers and payloads of the other members
        self._waiting_bytes = 0
        self._num_passed_on = 0  # bytes

    @property
    def num_samples(self) -> int:
        return len(self._keys)

    def write(self, key: str, parts: Mapping[str, bytes]) -> None:
        """Append a sample whose key no other sample of the shard has. Raises OSError, then or in a later call."""
        for part, data in parts.items():
            size = len(data)
            head = member_header(f"{key}.{part}", size)
            width, height = image_size(data if size <= HEADER_BYTES else data[:HEADER_BYTES])
            self._members.append(Member(part, self.num_bytes + len(head), size, 0, width, height))
            self._waiting.append((head, data))
            self._waiting_bytes += size
            self.num_bytes += len(head) + padded(size)
        self._keys.append((key, len(parts)))
        if self._waiting_bytes >= _TOGETHER:
            self._pass_on()

    def close(self) -> ShardIndex:
        """End the tar and put it on the disk. Raises OSError."""
        self._pass_on()
        self._put(bytes(archive_bytes(self.num_bytes) - self.num_bytes))
        self._file.flush()
        os.fsync(self._file.fileno())
        found = os.fstat(self._file.fileno())
        self._file.close()
        pairs = zip(self._members, self._checksums, strict=True)
        members = (member._replace(crc32=crc) for member, crc in pairs)
        return make_index(
            [(key, list(islice(members, count))) for key, count in self._keys],
            shard_bytes=found.st_size,
            mtime_ns=found.st_mtime_ns,
            sha256=self._digest.hexdigest(),
        )

    def discard(self) -> None:
        """Remove the file."""
        self.hidden.unlink(missing_ok=True)
        with contextlib.suppress(OSError):  # a full disk, which stopped the writing, would hide its error
            self._file.close()

    def _pass_on(self) -> None:
        """Digest and write what waits; the disk starts to write it too, so that the sync has less to wait for."""
        for head, data in self._waiting:
            self._put(head)
            self._put(data)
            self._put(bytes(padded(len(data)) - len(data)))
            self._checksums.append(zlib.crc32(data))
        self._waiting.clear()
        self._waiting_bytes = 0
        if sys.platform == "linux":  # only it takes the advice that bytes are no longer needed as a reason to write
            size = self.num_bytes - self._num_passed_on
            os.posix_fadvise(self._file.fileno(), self._num_passed_on, size, os.POSIX_FADV_DONTNEED)
            self._num_passed_on = self.num_bytes

    def _put(self, data: bytes) -> None:
        self._digest.update(data)
        self._file.write(data)
