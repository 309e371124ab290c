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
from pathlib import Path

from webdataset import TarWriter

from packloom.datasets.image_size import image_size
from packloom.datasets.index import Member, ShardIndex, make_index
from packloom.datasets.index_shard import HEADER_BYTES

_BLOCK = tarfile.BLOCKSIZE
#: webdataset's writer gives its output in pieces of 10 KB.
_BUFFER = 1 << 18
#: The disk starts to write after so many bytes, so that the sync at the end has less to wait for.
_WRITE_BEHIND = 4 << 20


class TarFile:
    """A shard that is being written under its hidden name; its index is made on the way."""

    def __init__(self, hidden: Path, final: Path) -> None:
        self.hidden = hidden
        self.final = final
        self._file = _Digested(hidden)
        # Fixed owner, mode and time: equal samples must give equal bytes.
        self._writer = TarWriter(self._file, user="", group="", mode=0o644, mtime=0, encoder=False)
        self._samples: list[tuple[str, list[Member]]] = []

    @property
    def num_bytes(self) -> int:
        """Of members, their headers included."""
        return int(self._writer.tarstream.offset)

    @property
    def num_samples(self) -> int:
        return len(self._samples)

    def write(self, key: str, parts: Mapping[str, bytes]) -> None:
        """Append a sample whose key no other sample of the shard has. Raises OSError."""
        members = []
        for part, data in parts.items():
            self._writer.write({"__key__": key, part: data})  # one call per part, since it sorts those of a call
            start = self.num_bytes - _padded(len(data))
            width, height = image_size(data if len(data) <= HEADER_BYTES else data[:HEADER_BYTES])
            members.append(Member(part, start, len(data), zlib.crc32(data), width, height))
        self._samples.append((key, members))
        self._file.start_writing()

    def close(self) -> ShardIndex:
        """End the tar and put it on the disk. Raises OSError."""
        self._writer.close()
        found = self._file.put_on_disk()
        return make_index(
            self._samples,
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


class _Digested(io.RawIOBase):
    """A new file that makes the digest of what is written."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self._file = path.open("wb", buffering=_BUFFER)
        self._digest = hashlib.sha256()
        self._num_written = 0
        self._num_started = 0  # bytes that the disk was asked to write

    @property
    def sha256(self) -> str:
        return self._digest.hexdigest()

    def write(self, data: bytes) -> int:  # type: ignore[override]  # tarfile writes no other
        self._digest.update(data)
        size = self._file.write(data)
        self._num_written += size
        return size

    def tell(self) -> int:
        return self._num_written

    def start_writing(self) -> None:
        """Only Linux takes the advice that these bytes are no longer needed as a reason to write them."""
        size = self._num_written - self._num_started
        if size >= _WRITE_BEHIND and sys.platform == "linux":
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
