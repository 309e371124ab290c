"""Keys and parts enter, one tar of reproducible bytes and its index leave; nothing is read back for it."""

from __future__ import annotations

import contextlib
import hashlib
import os
import sys
import tarfile
import zlib
from collections.abc import Mapping
from pathlib import Path

from packloom.datasets.image_size import image_size
from packloom.datasets.index import Member, ShardIndex, make_index
from packloom.datasets.index_shard import HEADER_BYTES

_BLOCK = tarfile.BLOCKSIZE
#: Where the fields of a ustar header stand, and the first size that its field cannot hold.
_NAME, _SIZE, _CHECKSUM, _TOO_LARGE = slice(0, 100), slice(124, 136), slice(148, 156), 8**11
#: Payloads are larger, so that they are written without being copied into the buffer first.
_BUFFER = 1 << 14
#: The disk starts to write after so many bytes, so that the sync at the end has less to wait for.
_WRITE_BEHIND = 4 << 20


class TarFile:
    """A shard that is being written under its hidden name; its index is made on the way."""

    def __init__(self, hidden: Path, final: Path) -> None:
        self.hidden = hidden
        self.final = final
        self.num_bytes = 0  # of members
        self._file = hidden.open("wb", buffering=_BUFFER)
        self._num_started = 0  # bytes that the disk was asked to write
        self._digest = hashlib.sha256()
        self._samples: list[tuple[str, list[Member]]] = []

    @property
    def num_samples(self) -> int:
        return len(self._samples)

    def write(self, key: str, parts: Mapping[str, bytes]) -> None:
        """Append a sample whose key no other sample of the shard has. Raises OSError."""
        members = []
        for part, data in parts.items():
            self._append(member_header(f"{key}.{part}", len(data)))
            width, height = image_size(data if len(data) <= HEADER_BYTES else data[:HEADER_BYTES])
            members.append(Member(part, self.num_bytes, len(data), zlib.crc32(data), width, height))
            self._append(data)
            self._append(bytes(-len(data) % _BLOCK))
        self._samples.append((key, members))
        self._start_writing()

    def close(self) -> ShardIndex:
        """End the tar and put it on the disk. Raises OSError."""
        self._append(bytes(archive_bytes(self.num_bytes) - self.num_bytes))
        self._file.flush()
        os.fsync(self._file.fileno())
        found = os.fstat(self._file.fileno())
        self._file.close()
        return make_index(
            self._samples,
            shard_bytes=found.st_size,
            mtime_ns=found.st_mtime_ns,
            sha256=self._digest.hexdigest(),
        )

    def discard(self) -> None:
        """Remove the file."""
        self.hidden.unlink(missing_ok=True)
        with contextlib.suppress(OSError):  # a full disk, which stopped the writing, would hide its error with another
            self._file.close()

    def _start_writing(self) -> None:
        """Only Linux takes the advice that these bytes are no longer needed as a reason to write them."""
        size = self.num_bytes - self._num_started
        if size >= _WRITE_BEHIND and sys.platform == "linux":
            os.posix_fadvise(self._file.fileno(), self._num_started, size, os.POSIX_FADV_DONTNEED)
            self._num_started = self.num_bytes

    def _append(self, data: bytes) -> None:
        self._file.write(data)
        self._digest.update(data)
        self.num_bytes += len(data)


def member_header(name: str, size: int) -> bytes:
    """The header blocks of a file in a tar: fixed owner, mode and time, since equal samples must give equal bytes.

    Names and sizes that one block has no room for get a pax header too, as ``tarfile`` writes it. It takes as long for
    every header as a digest over 80 KB, and so it is asked once for all plain ones.
    """
    if size >= _TOO_LARGE or len(name) > tarfile.LENGTH_NAME or not name.isascii():
        return _tarfile_header(name, size)
    block = bytearray(_PLAIN)
    block[_NAME] = name.encode("ascii").ljust(tarfile.LENGTH_NAME, b"\0")
    block[_SIZE] = b"%011o\0" % size
    block[_CHECKSUM] = b"%06o\0 " % sum(block)
    return bytes(block)


def member_bytes(name: str, size: int) -> int:
    """What a member of ``size`` bytes takes in a tar, header blocks included (a long name needs several)."""
    is_plain = len(name) <= tarfile.LENGTH_NAME and name.isascii()  # the usual case, which is slow to try
    header = _BLOCK if is_plain else len(_tarfile_header(name, 0))
    return header + -(-size // _BLOCK) * _BLOCK


def archive_bytes(num_bytes: int) -> int:
    """The size of a tar with members of so many bytes: two zero blocks close it, then whole records."""
    return -(-(num_bytes + 2 * _BLOCK) // tarfile.RECORDSIZE) * tarfile.RECORDSIZE


def _tarfile_header(name: str, size: int) -> bytes:
    info = tarfile.TarInfo(name)
    info.size = size
    return info.tobuf(tarfile.PAX_FORMAT, "utf-8", "surrogateescape")


def _plain_header() -> bytes:
    """A header without name and size, whose checksum counts as blanks."""
    block = bytearray(_tarfile_header("", 0))
    block[_CHECKSUM] = b" " * 8
    return bytes(block)


_PLAIN = _plain_header()
