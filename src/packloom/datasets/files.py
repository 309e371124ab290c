"""A local path or a url (s3, gcs, http, memory, ...) and a byte range enter, bytes leave."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, TypeVar

from packloom.datasets.paths import is_url, split
from packloom.errors import CapabilityError

_T = TypeVar("_T")
#: The name of standard input among paths.
STDIN = "-"
MAX_OPEN_FILES = 128
_ATTEMPTS = 3
_FIRST_PAUSE = 0.2  # seconds; doubled after each attempt

#: (path, start, stop) in bytes.
Range = tuple[str, int, int]


@dataclass(frozen=True, kw_only=True, slots=True)
class FileStatus:
    """What tells one version of a file from another."""

    size: int
    mtime_ns: int | None  # None for a url


class ByteStream(Protocol):
    """What gives bytes one after the other; b"" at the end. Failures are OSErrors."""

    def read(self, size: int, /) -> bytes: ...


class Files:
    """Reads byte ranges. Local files stay open, the ``MAX_OPEN_FILES`` used last; urls go through fsspec.

    May be shared by threads and carried into forked or spawned workers: reads name their offset, so no file position
    is shared. A failed read of a url is tried again, ``_ATTEMPTS`` times in all. Every failure is an OSError.
    """

    def __init__(self) -> None:
        self._open: dict[str, _Descriptor] = {}

    def __reduce__(self) -> tuple[type[Files], tuple[()]]:
        return Files, ()

    def read_ranges(self, ranges: Sequence[Range]) -> list[bytes | OSError]:
        """One result per range, in order; the ranges of urls are fetched concurrently where fsspec can.

        A result may be shorter than its range where the file ends before.
        """
        results: list[bytes | OSError] = [b""] * len(ranges)
        remote = [place for place, (path, _, _) in enumerate(ranges) if is_url(path)]
        for place, (path, _, _) in enumerate(ranges):
            if is_url(path):
                continue
            try:
                results[place] = self._read_local(*ranges[place])
            except OSError as error:
                results[place] = error
        for place, result in zip(remote, _read_remote([ranges[place] for place in remote]), strict=True):
            results[place] = result
        return results

    def _read_local(self, path: str, start: int, stop: int) -> bytes:
        descriptor = self._open.pop(path, None) or _Descriptor(path)
        self._open[path] = descriptor  # it is now the youngest
        while len(self._open) > MAX_OPEN_FILES:
            try:
                oldest = next(iter(self._open))
            except (RuntimeError, StopIteration):  # another thread has changed it in between
                continue
            self._open.pop(oldest, None)  # closed as soon as no thread reads from it any more
        chunks: list[bytes] = []
        while start < stop and (chunk := os.pread(descriptor.number, min(stop - start, 1 << 30), start)):
            chunks.append(chunk)
            start += len(chunk)
        return chunks[0] if len(chunks) == 1 else b"".join(chunks)


class _Descriptor:
    """An open file that closes itself once nobody holds it."""

    def __init__(self, path: str) -> None:
        self.number = -1
        self.number = os.open(path, os.O_RDONLY | os.O_CLOEXEC)

    def __del__(self) -> None:
        if self.number >= 0:
            os.close(self.number)


def status(path: str) -> FileStatus:
    """Size and time of a file; raises OSError (FileNotFoundError) if there is none."""
    if is_url(path):
        size = _remote(path, lambda system, inner: system.size(inner))
        if size is None:
            raise OSError(f"{path}: the server does not tell its size")
        return FileStatus(size=int(size), mtime_ns=None)
    found = os.stat(path)
    return FileStatus(size=found.st_size, mtime_ns=found.st_mtime_ns)


def read_file(path: str) -> bytes:
    """A whole small file; raises OSError."""
    if is_url(path):
        return bytes(_remote(path, lambda system, inner: system.cat_file(inner)))
    return Path(path).read_bytes()


def write_file(path: str, data: bytes) -> None:
    """Write a file at once: under its name stands the old content or the new one, never a part. Raises OSError."""
    if is_url(path):
        _remote(path, lambda system, inner: system.pipe_file(inner, data))
        return
    target = Path(path)
    target.parent.mkdir(parents=True, exist_ok=True)
    hidden = target.with_name(f".{target.name}.{os.getpid()}.partial")
    try:
        with hidden.open("wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.replace(hidden, target)
    finally:
        hidden.unlink(missing_ok=True)


def fetch_file(path: str, target: Path) -> None:
    """Copy the file of a url to a local path; raises OSError."""
    _remote(path, lambda system, inner: system.get_file(inner, str(target)))


def list_tars(folder: str) -> list[str]:
    """The names of the ``*.tar`` files in a folder, sorted, hidden ones left out; raises OSError."""
    if is_url(folder):
        names = [split(str(item))[1] for item in _remote(folder, lambda system, inner: system.ls(inner, detail=False))]
    else:
        with os.scandir(folder) as items:
            names = [item.name for item in items]
    return sorted(name for name in names if name.endswith(".tar") and not name.startswith("."))


def is_folder(path: str) -> bool:
    """Whether the path names a folder; a url does unless it ends like a shard (a query behind that does not count)."""
    return not path.split("?")[0].endswith(".tar") if is_url(path) else os.path.isdir(path)


def open_stream(path: str) -> ByteStream:
    """The bytes of stdin (``-``) or of a url, to be read forwards and once. Raises OSError; so do its reads.

    An http server need not know ranges.
    """
    if path == STDIN:
        if sys.stdin is None or sys.stdin.closed or sys.stdin.isatty():
            raise OSError("standard input is a terminal, or closed: pipe the tars into this process")
        return sys.stdin.buffer
    options = {"block_size": 0} if path.startswith(("http://", "https://")) else {}
    return _RemoteStream(path, _remote(path, lambda system, inner: system.open(inner, "rb", **options)))


class _RemoteStream:
    """A url that is read forwards; a read that fails is not tried again, since bytes may be lost."""

    def __init__(self, path: str, file: Any) -> None:
        self._path = path
        self._file = file

    def read(self, size: int, /) -> bytes:
        try:
            return bytes(self._file.read(size))
        except Exception as error:  # each backend raises types of its own
            raise _as_os_error(error, self._path) from error


def _read_remote(ranges: Sequence[Range]) -> list[bytes | OSError]:
    results: list[bytes | OSError] = [b""] * len(ranges)
    missing = [place for place, (_, start, stop) in enumerate(ranges) if start < stop]  # an empty range is no request
    for attempt in range(_ATTEMPTS):
        if attempt:
            time.sleep(_FIRST_PAUSE * 2 ** (attempt - 1))
        for place, result in zip(missing, _read_once([ranges[place] for place in missing]), strict=True):
            results[place] = result
        missing = [place for place in missing if _is_transient(results[place])]
        if not missing:
            break
    return results


def _read_once(ranges: Sequence[Range]) -> list[bytes | OSError]:
    by_server: dict[tuple[str, ...], list[int]] = {}
    for place, (path, _, _) in enumerate(ranges):
        by_server.setdefault(tuple(path.split("/", 3)[:3]), []).append(place)
    results: list[bytes | OSError] = [b""] * len(ranges)
    for places in by_server.values():
        found = _fetch_ranges([ranges[place] for place in places])
        for place, result in zip(places, found, strict=True):
            path, start, stop = ranges[place]
            if isinstance(result, bytes) and len(result) > stop - start:
                result = OSError(f"{path}: the server sent {len(result)} bytes for a range of {stop - start}")
            results[place] = result
    return results


def _fetch_ranges(ranges: Sequence[Range]) -> list[bytes | OSError]:
    """The ranges of urls of one server or bucket."""
    try:
        system, _ = _file_system(ranges[0][0])
        paths = [system._strip_protocol(path) for path, _, _ in ranges]
        starts, stops = [start for _, start, _ in ranges], [stop for _, _, stop in ranges]
        found = system.cat_ranges(paths, starts, stops, on_error="return")
    except CapabilityError:
        raise
    except Exception as error:  # noqa: BLE001 - each backend raises types of its own
        return [_as_os_error(error, path) for path, _, _ in ranges]
    pairs = zip(found, ranges, strict=True)
    return [_as_os_error(r, path) if isinstance(r, BaseException) else bytes(r) for r, (path, _, _) in pairs]


def _is_transient(result: bytes | OSError) -> bool:
    return isinstance(result, OSError) and not isinstance(result, (FileNotFoundError, PermissionError))


def _remote(path: str, action: Callable[[Any, str], _T]) -> _T:
    """``action(file system, path within it)``, tried again where it failed in passing."""
    for attempt in range(_ATTEMPTS):
        if attempt:
            time.sleep(_FIRST_PAUSE * 2 ** (attempt - 1))
        try:
            return action(*_file_system(path))
        except CapabilityError:
            raise
        except Exception as error:  # each backend raises types of its own
            failure = _as_os_error(error, path)
            if not _is_transient(failure) or attempt == _ATTEMPTS - 1:
                raise failure from error
    raise OSError(f"{path} could not be reached")


def _file_system(path: str) -> tuple[Any, str]:
    """fsspec's file system and the path within it; fsspec keeps one per process, so forked workers make their own."""
    try:
        from fsspec.core import url_to_fs  # type: ignore[import-untyped]  # noqa: PLC0415 - optional

        return url_to_fs(path)  # type: ignore[no-any-return]
    except ImportError as error:
        raise CapabilityError(f"{path} cannot be read: {error}; install fsspec and the package it names") from error


def _as_os_error(error: BaseException, path: str) -> OSError:
    if isinstance(error, OSError):
        return error
    return OSError(f"{path}: {type(error).__name__}: {error}")
