"""Keys and parts enter, one tar of reproducible bytes and its index leave; nothing is read back for it."""

from __future__ import annotations

import contextlib
import hashlib
import io
import os
import sys
import tarfile
import zlib
from collections.abc import Mapping
from itertools import islice
from pathlib import Path

from webdataset import TarWriter

from packloom.datasets.index import Member, ShardIndex, make_index
from packloom.datasets.index_shard import HEADER_BYTES
from packloom.image_size import image_size

_BLOCK = tarfile.BLOCKSIZE
_BUFFER = 1 << 18
#: More than any payload has: tarfile copies it in pieces of this size.
_WHOLE = 1 << 60
#: So many bytes are digested and written together. Passing over payloads drops the interpreter from the processor's
#: cache, and what runs next takes twice as long: once for many samples is cheaper than once for each.
_TOGETHER = 4 << 20


class TarFile:
    """A shard that is being written under its hidden name; its index is made on the way."""

    def __init__(self, hidden: Path, final: Path) -> None:
        self.hidden = hidden
        self.final = final
        self._file = _Digested(hidden)
        # Fixed owner, mode and time: equal samples must give equal bytes.
        self._writer = TarWriter(self._file, user="", group="", mode=0o644, mtime=0, encoder=False)
        # Its own stream is one for pipes, which copies everything twice in pieces of 10 KB.
        self._writer.tarstream = tarfile.TarFile(fileobj=self._file, mode="w", copybufsize=_WHOLE)
        self._keys: list[tuple[str, int]] = []  # with the number of parts
        self._members: list[Member] = []  # without checksums
        self._checksums: list[int] = []  # of the members whose payload is passed on
        self._waiting: list[bytes] = []  # payloads of the other members
        self._waiting_bytes = 0

    @property
    def num_bytes(self) -> int:
        """Of members, their headers included."""
        return int(self._writer.tarstream.offset)

    @property
    def num_samples(self) -> int:
        return len(self._keys)

    def write(self, key: str, parts: Mapping[str, bytes]) -> None:
        """Append a sample whose key no other sample of the shard has. Raises OSError, then or in a later call."""
        for part, data in parts.items():
            self._writer.write({"__key__": key, part: data})  # one call per part, since it sorts those of a call
            start = self.num_bytes - _padded(len(data))
            width, height = image_size(data if len(data) <= HEADER_BYTES else data[:HEADER_BYTES])
            self._members.append(Member(part, start, len(data), 0, width, height))
            self._waiting.append(data)
            self._waiting_bytes += len(data)
        self._keys.append((key, len(parts)))
        if self._waiting_bytes >= _TOGETHER:
            self._pass_on()

    def close(self) -> ShardIndex:
        """End the tar and put it on the disk. Raises OSError."""
        self._writer.close()
        self._pass_on()
        found = self._file.put_on_disk()
        pairs = zip(self._members, self._checksums, strict=True)
        members = (member._replace(crc32=crc) for member, crc in pairs)
        return make_index(
            [(key, list(islice(members, count))) for key, count in self._keys],
            shard_bytes=found.st_size,
            mtime_ns=found.st_mtime_ns,
            sha256=self._file.sha256,
        )

    def discard(self) -> None:
        """Remove the file."""
        self.hidden.unlink(missing_ok=True)
        for file in (self._writer, self._file):
            with contextlib.suppress(OSError):  # a full disk, which stopped the writing, would hide its error
                file.close()

    def _pass_on(self) -> None:
        self._checksums += map(zlib.crc32, self._waiting)
        self._waiting.clear()
        self._waiting_bytes = 0
        self._file.pass_on()


class _Digested(io.RawIOBase):
    """A new file that makes the digest of what is written; what is written waits until it is passed on."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self._file = path.open("wb", buffering=_BUFFER)
        self._digest = hashlib.sha256()
        self._waiting: list[bytes] = []
        self._num_written = 0
        self._num_started = 0  # bytes that the disk was asked to write

    @property
    def sha256(self) -> str:
        return self._digest.hexdigest()

    def write(self, data: bytes) -> int:  # type: ignore[override]  # tarfile writes no other
        self._waiting.append(data)
        self._num_written += len(data)
        return len(data)

    def tell(self) -> int:
        return self._num_written

    def pass_on(self) -> None:
        """Digest and write what waits; the disk starts to write it too, so that the sync has less to wait for."""
        for data in self._waiting:
            self._digest.update(data)
            self._file.write(data)
        self._waiting.clear()
        if sys.platform == "linux":  # only it takes the advice that bytes are no longer needed as a reason to write
            size = self._num_written - self._num_started
            os.posix_fadvise(self._file.fileno(), self._num_started, size, os.POSIX_FADV_DONTNEED)
            self._num_started = self._num_written

    def put_on_disk(self) -> os.stat_result:
        self._file.flush()
        os.fsync(self._file.fileno())
        found = os.fstat(self._file.fileno())
        self.close()
        return found

    def close(self) -> None:
        self._file.close()
        super().close()


def member_bytes(name: str, size: int) -> int:
    """What a member of ``size`` bytes takes in a tar, header blocks included (a long name needs several)."""
    if len(name) <= tarfile.LENGTH_NAME and name.isascii():  # the usual case, which is slow to try
        return _BLOCK + _padded(size)
    return len(tarfile.TarInfo(name).tobuf(tarfile.PAX_FORMAT, "utf-8", "surrogateescape")) + _padded(size)


def archive_bytes(num_bytes: int) -> int:
    """The size of a tar with members of so many bytes: two zero blocks close it, then whole records."""
    return -(-(num_bytes + 2 * _BLOCK) // tarfile.RECORDSIZE) * tarfile.RECORDSIZE


def _padded(size: int) -> int:
    return -(-size // _BLOCK) * _BLOCK
