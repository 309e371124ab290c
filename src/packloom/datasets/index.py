"""The samples of one shard, key by key and part by part: where each stands, as a small table in memory or on disk."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from packloom.datasets.table_file import pack_table, unpack_table
from packloom.errors import ReadError, ShardError

#: Raised whenever a table's content, or the rule by which shards are cut into samples, changes.
INDEX_VERSION = 3
#: Names in tars may hold bytes that are no UTF-8; tarfile reads them in this way too.
_NAME_ERRORS = "surrogateescape"
#: Each has one item per member; the two others are ``first`` and ``key_end``, and the letters of ``keys``.
_MEMBER_COLUMNS = ("part", "offset", "size", "crc32", "width", "height")


class Member(NamedTuple):
    """One part of a sample."""

    part: str  # lower-cased, as every reader gives it
    offset: int  # of its payload, in bytes from the start of the shard
    size: int  # bytes
    crc32: int  # of its payload
    width: int  # pixels of an image as it is shown, after EXIF rotation; 0 where it is no image or not known
    height: int


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class ShardIndex:
    """The good samples of one shard, in order, and what is wrong with the others.

    Arrays (N samples, M members): ``first`` [N + 1], the first member of each sample; ``key_end`` [N + 1], where each
    key ends in ``keys``, the first item being 0; and per member [M] its part (a place in ``part_names``), offset,
    size, crc32, width and height. About 60 bytes per sample of two members on disk and in memory.
    """

    shard_bytes: int
    mtime_ns: int  # of the shard when it was indexed
    sha256: str  # of the shard's content
    part_names: tuple[str, ...]
    columns: Mapping[str, np.ndarray]
    faults: tuple[ReadError, ...] = ()

    @property
    def num_samples(self) -> int:
        return len(self.columns["first"]) - 1

    @property
    def nbytes(self) -> int:
        """What the arrays take in memory."""
        return sum(column.nbytes for column in self.columns.values())

    def key(self, index: int) -> str:
        """The key of a sample."""
        start, end = self.columns["key_end"][index : index + 2].tolist()
        return self.columns["keys"][start:end].tobytes().decode("utf-8", _NAME_ERRORS)

    def offset(self, index: int) -> int:
        """Where the payload of a sample's first part begins."""
        return int(self.columns["offset"][int(self.columns["first"][index])])

    def members(self, index: int) -> list[Member]:
        """The parts of a sample in the order of the shard."""
        start, end = self.columns["first"][index : index + 2].tolist()
        numbers = (self.columns[name][start:end].tolist() for name in _MEMBER_COLUMNS)
        return [Member(self.part_names[part], *rest) for part, *rest in zip(*numbers, strict=True)]

    def to_bytes(self) -> bytes:
        """The content of an index file; its layout is that of ``table_file``."""
        header = {
            "version": INDEX_VERSION,
            "shard": {"bytes": self.shard_bytes, "mtime_ns": self.mtime_ns, "sha256": self.sha256},
            "part_names": self.part_names,
            "faults": [[fault.key, fault.code, fault.reason, fault.hint, fault.offset] for fault in self.faults],
        }
        return pack_table(header, self.columns)

    @classmethod
    def from_bytes(cls, data: bytes, *, where: str) -> ShardIndex:
        """Raises ShardError for a damaged file, for one of another version and for one whose numbers cannot be."""
        header, columns = unpack_table(data, where=where)
        if header.get("version") != INDEX_VERSION:
            raise ShardError(f"{where} has version {header.get('version')}, this packloom reads {INDEX_VERSION}")
        try:
            index = cls(
                shard_bytes=int(header["shard"]["bytes"]),
                mtime_ns=int(header["shard"]["mtime_ns"]),
                sha256=str(header["shard"]["sha256"]),
                part_names=tuple(map(str, header["part_names"])),
                columns=columns,
                faults=tuple(ReadError(r, key=k, code=c, hint=h, offset=o) for k, c, r, h, o in header["faults"]),
            )
            sound = _is_sound(index)
        except (ValueError, KeyError, TypeError, IndexError) as error:
            raise ShardError(f"{where} is damaged: {type(error).__name__}: {error}") from error
        if not sound:
            raise ShardError(f"{where} is damaged: its numbers contradict one another")
        return index


def make_index(
    samples: Sequence[tuple[str, Sequence[Member]]],
    *,
    shard_bytes: int,
    mtime_ns: int,
    sha256: str,
    faults: Sequence[ReadError] = (),
) -> ShardIndex:
    """The index of a shard with these samples: key and members."""
    keys = [key.encode("utf-8", _NAME_ERRORS) for key, _ in samples]
    members = [member for _, group in samples for member in group]
    part_names = tuple(dict.fromkeys(member.part for member in members))
    places = {name: place for place, name in enumerate(part_names)}
    columns = {
        "first": _ends([len(group) for _, group in samples]),
        "key_end": _ends([len(key) for key in keys]),
        "keys": np.frombuffer(b"".join(keys), dtype=np.uint8),
        "part": _numbers([places[member.part] for member in members]),
    }
    columns |= {name: _numbers([getattr(member, name) for member in members]) for name in _MEMBER_COLUMNS[1:]}
    return ShardIndex(
        shard_bytes=shard_bytes,
        mtime_ns=mtime_ns,
        sha256=sha256,
        part_names=part_names,
        columns=columns,
        faults=tuple(faults),
    )


def _numbers(values: Sequence[Any]) -> np.ndarray:
    return np.array(values, dtype=np.uint64)


def _ends(lengths: Sequence[int]) -> np.ndarray:
    return np.concatenate([np.zeros(1, np.uint64), np.cumsum(_numbers(lengths), dtype=np.uint64)])


def _is_sound(index: ShardIndex) -> bool:
    """Whether every number points to where something is, so that no later look-up can go astray."""
    columns = {name: column.astype(np.int64) for name, column in index.columns.items() if name != "keys"}
    first, key_end, num_members = columns["first"], columns["key_end"], len(columns["part"])
    ends = columns["offset"] + columns["size"]
    return bool(
        all(len(columns[name]) == num_members for name in _MEMBER_COLUMNS)
        and len(first) == len(key_end) >= 1
        and first[0] == key_end[0] == 0
        and (first[1:] > first[:-1]).all()
        and (key_end[1:] >= key_end[:-1]).all()
        and first[-1] == num_members
        and key_end[-1] == len(index.columns["keys"])
        and (columns["part"] < len(index.part_names)).all()
        and (ends <= index.shard_bytes).all()
        and (ends >= columns["offset"]).all()
        and (columns["offset"] >= 0).all()
    )
