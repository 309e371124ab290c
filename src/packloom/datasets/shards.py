"""Dataset paths enter, their shards leave; a shard enters, its raw samples and one ReadError per bad sample leave."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Sequence
from pathlib import Path

from braceexpand import braceexpand

from packloom.datasets.files import STDIN, is_folder, list_tars, open_stream
from packloom.datasets.paths import expand_braces, is_url, join, normalise
from packloom.datasets.tar_groups import Entry
from packloom.datasets.tar_scan import scan_shard
from packloom.datasets.tar_stream import read_stream
from packloom.datasets.tar_walk import SampleBytes, ShardFile
from packloom.errors import ReadError, ShardError
from packloom.types import RawSample

#: A larger part is refused before its bytes are read.
MAX_MEMBER_BYTES = 1 << 30

_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+:")  # two letters or more: a single one is a drive
_ONE_OF = "a folder of .tar shards, a .tar file, a brace pattern such as 'shards/shard-{000000..000009}.tar', or a list"


def expand_paths(path: str | os.PathLike[str] | Sequence[str | os.PathLike[str]]) -> list[str]:
    """The shards that a dataset path stands for, in order.

    A path is a folder (its ``*.tar`` files, sorted, hidden ones left out), a tar file, a brace pattern, the url of any
    of these, ``-`` for standard input, or a list. Commands (``pipe:``) and wildcards are not read. Raises ShardError
    if there is no shard, if a local one is missing, has no bytes or is not a .tar file, and if one is listed twice (its
    samples would count twice).
    """
    paths = [path] if isinstance(path, (str, os.PathLike)) else list(path)
    if not paths or not all(os.fspath(item) for item in paths):
        raise ShardError(f"the dataset path is empty: name {_ONE_OF}")
    shards = [shard for item in paths for shard in _expand_one(os.fspath(item))]
    for shard in shards:
        if not is_stream(shard):
            _check_shard(shard)
    places: dict[str, str] = {}
    for shard in shards:
        first = places.setdefault(os.path.abspath(shard), shard)
        if first is not shard:
            raise ShardError(f"shard {shard} is listed twice, so its samples would be read twice: list each shard once")
    return shards


def is_stream(shard: str) -> bool:
    """Whether a shard is read forwards only, and so not before its first sample is used."""
    return shard == STDIN or is_url(shard)


def read_shard(
    path: str, *, first: int = 0, step: int = 1, max_member_bytes: int = MAX_MEMBER_BYTES
) -> Iterator[RawSample | ReadError]:
    """The samples of a shard in order: a dict of raw bytes for a good one, a ReadError *yielded* for a bad one.

    Nothing is raised for a damaged shard, so that the caller's error policy can count the error and go on. A good
    sample is exactly what plain webdataset gives without decoding: ``__key__``, ``__url__``, part name → bytes.

    The headers are read before the first payload. That is how an incomplete sample is known before it is used: one
    whose members do not stand together, and the last one before the place where a shard is cut off or unreadable
    (what lies behind that place is lost; all before it arrives). Every key, good or bad, counts as one item; only the
    items ``first``, ``first + step``, ... are read, so that several readers can share a shard.

    Of standard input and of urls nothing can be known before it was read: see ``tar_stream``.
    """
    if is_stream(path):
        yield from _read_forwards(path, first=first, step=step, max_member_bytes=max_member_bytes)
        return
    try:
        file = ShardFile(path)
    except OSError as error:
        if first == 0:  # it counts as the only item of the shard
            yield ReadError(f"the shard cannot be opened: {error.strerror}", key=path, code="read.open")
        return
    with file:
        entries = scan_shard(file, path, max_member_bytes=max_member_bytes)
        for entry in entries[first::step]:
            yield entry.fault or load_sample(entry, file, path)


def _read_forwards(path: str, *, first: int, step: int, max_member_bytes: int) -> Iterator[RawSample | ReadError]:
    try:
        stream = open_stream(path)
    except OSError as error:
        if first == 0:
            yield ReadError(f"the shard cannot be opened: {error.strerror or error}", key=path, code="read.open")
        return
    yield from read_stream(stream, path, first=first, step=step, max_member_bytes=max_member_bytes)


def load_sample(entry: Entry, file: ShardFile | SampleBytes, path: str) -> RawSample | ReadError:
    """The sample of an entry without a fault, or the ReadError for what cannot be read of it."""
    sample: RawSample = {"__key__": entry.key, "__url__": path}
    try:
        for name, member in entry.members.items():
            file.seek(member.offset_data)
            sample[name] = file.read(member.size)
            if len(sample[name]) < member.size:
                raise OSError(f"it ends within member {member.name}")
    except OSError as error:
        reason = f"cannot be read from shard {path}: {error}"
        return ReadError(reason, key=entry.key, code="read.payload", hint="check the disk, then rewrite the shard")
    return sample


def _expand_one(path: str) -> list[str]:
    if os.path.isdir(path):
        return _list_folder(path)
    if os.path.exists(path) or path == STDIN:
        return [path]
    if is_url(path):
        plain = normalise(path)
        return (
            [shard for url in expand_braces(plain) for shard in _expand_url(url)]
            if is_url(plain)
            else _expand_one(plain)
        )
    if "::" in path or "${" in path or _SCHEME.match(path):
        raise ShardError(f"{path!r} is a command, a chain of urls or a variable, which are not read: name {_ONE_OF}")
    try:
        shards = list(braceexpand(path))
    except ValueError as error:
        raise ShardError(f"brace pattern {path!r} is malformed: {error}") from error
    missing = [shard for shard in shards if not os.path.exists(shard)]
    if missing:
        more = f" and {len(missing) - 1} more of its {len(shards)} shards" if len(missing) > 1 else ""
        hint = "; wildcards are not expanded" if re.search(r"[*?\[]", path) else ""
        raise ShardError(f"{missing[0]}{more} does not exist{hint}: name {_ONE_OF}")
    return shards


def _expand_url(url: str) -> list[str]:
    if not is_folder(url):
        return [url]
    try:
        return [join(url, name) for name in list_tars(url)]
    except OSError as error:
        raise ShardError(f"{url} cannot be listed: {error}: name its .tar shards") from error


def _list_folder(path: str) -> list[str]:
    shards = sorted(str(item) for item in Path(path).glob("*.tar") if not item.name.startswith("."))
    if not shards:
        below = next(Path(path).glob("*/*.tar"), None)
        hint = f" (there are some in {below.parent}: name that folder)" if below else ""
        raise ShardError(f"folder {path} holds no .tar shards{hint}: write some with packloom.datasets.write_shards")
    return shards


def _check_shard(shard: str) -> None:
    if not os.path.isfile(shard):
        raise ShardError(f"shard {shard} is not a file")
    if not shard.endswith(".tar"):
        raise ShardError(
            f"{shard} is not a .tar shard; compressed tars and other formats are not read: convert it first"
        )
    if os.path.getsize(shard) == 0:
        raise ShardError(f"shard {shard} has no bytes: write it again or take it out of the dataset")
