"""A table of media by key enters, an index of its keys on disk and the bytes for the keys of some rows leave."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from packloom.datasets.convert.row_table import open_numbers, write_numbers
from packloom.datasets.convert.source import RowSource, SourceRow, digest
from packloom.errors import ConfigError, SampleError, ShardError

#: Keys are sorted in so many portions, one of them in memory at a time.
_PORTIONS = 64


@dataclass(frozen=True, kw_only=True)
class MediaTableSpec:
    """Where a media table is and where its index lies; plain data."""

    source: RowSource
    key: str
    value: str
    index: Path  # (digest of key, row) in ascending order of digests

    @property
    def identity(self) -> str:
        return digest(self.source.identity, self.key, self.value)


def index_media_table(source: RowSource, scratch: Path, *, key: str, value: str) -> MediaTableSpec:
    """Read all keys and write their index. Raises ConfigError for a column that is not there."""
    names = [column.name for column in source.columns or ()]
    for name in (key, value):
        if name not in names:
            raise ConfigError(f"the media table has no column {name!r}; it has {', '.join(names)}")
    scratch.mkdir(parents=True, exist_ok=True)
    index = scratch / "media.u64"
    portions = [scratch / f"media-{number:02d}.u64" for number in range(_PORTIONS)]
    _spread(source, key, portions)

    def ordered() -> Iterator[int]:
        for portion in portions:
            pairs = np.array(open_numbers(portion, width=2))
            yield from pairs[np.argsort(pairs[:, 0], kind="stable")].ravel().tolist()
            portion.unlink()

    write_numbers(index, ordered())
    return MediaTableSpec(source=source, key=key, value=value, index=index)


class MediaTable:
    """Looks keys up; what ``fetch`` brought is kept until the next ``fetch``."""

    def __init__(self, spec: MediaTableSpec) -> None:
        self._spec = spec
        self._pairs = open_numbers(spec.index, width=2)
        self._found: dict[str, bytes | SampleError] = {}

    def fetch(self, keys: Sequence[str | int]) -> None:
        """Read the media of these keys in one go."""
        wanted = list(dict.fromkeys(map(str, keys)))
        rows = {key: self._candidates(key) for key in wanted}
        numbers = np.array(sorted({row for found in rows.values() for row in found}), dtype=np.int64)
        values: dict[int, tuple[str, bytes | None]] = {}
        if len(numbers):
            for row in self._spec.source.rows(numbers, [self._spec.key, self._spec.value]):
                if isinstance(row, SourceRow):
                    values[row.number] = str(row.values[self._spec.key]), _as_bytes(row.values[self._spec.value])
        self._found = {
            key: self._pick(key, [values[row][1] for row in rows[key] if values[row][0] == key]) for key in wanted
        }

    def get(self, key: str | int, where: str) -> bytes:
        """The medium of a key. Raises SampleError for a key that is not there, or there twice, or without bytes."""
        if str(key) not in self._found:
            self.fetch([key])
        found = self._found[str(key)]
        if isinstance(found, SampleError):
            raise SampleError(f"{where}: {found.reason}", code=found.code, hint=found.hint)
        return found

    def _candidates(self, key: str) -> list[int]:
        wanted = np.uint64(_digest(key))
        first, last = (int(np.searchsorted(self._pairs[:, 0], wanted, side=side)) for side in ("left", "right"))
        return [int(row) for row in self._pairs[first:last, 1]]

    def _pick(self, key: str, values: list[bytes | None]) -> bytes | SampleError:
        if len(values) > 1:
            return SampleError(
                f"{len(values)} rows of the media table have the key {key!r}", code="convert.ambiguous_key"
            )
        if not values:
            return SampleError(f"no row of the media table has the key {key!r}", code="convert.missing_key")
        if values[0] is None:
            return SampleError(f"the media table holds null for the key {key!r}", code="convert.null_media")
        return values[0]


def _spread(source: RowSource, key: str, portions: Sequence[Path]) -> None:
    """(digest, row) of all keys, into the portion that the first bits of the digest name."""
    files = [portion.open("wb") for portion in portions]
    try:
        for row in source.rows(np.arange(source.num_rows), [key]):
            if not isinstance(row, SourceRow):
                raise ShardError(f"the keys of the media table cannot be read: {row}")
            value = row.values.get(key)
            if value is not None:
                number = _digest(str(value))
                files[number * _PORTIONS >> 64].write(np.array([number, row.number], "<u8").tobytes())
    finally:
        for file in files:
            file.close()


def _digest(key: str) -> int:
    return int(digest(key)[:16], 16)


def _as_bytes(value: object) -> bytes | None:
    if isinstance(value, dict):
        value = value.get("bytes")
    return value if isinstance(value, bytes) else None
