"""What every kind of source looks like: rows with fixed numbers enter, one by one or as the reason why they cannot."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol, TypeVar

import numpy as np

from packloom.errors import SampleError

#: What a column holds. ``media``: bytes, paths with bytes, or lists of these; ``text``, ``texts`` may be paths or keys.
ColumnType = Literal["text", "texts", "number", "nested", "media", "other"]

#: Rows are read in chunks of about so many bytes.
CHUNK_BYTES = 8 << 20
#: Rows behind small ones may be large: so many of 200 KB are 26 MB.
_MAX_CHUNK_ROWS = 128

_T = TypeVar("_T")


@dataclass(frozen=True, kw_only=True, slots=True)
class Column:
    """One column of a source."""

    name: str
    type: ColumnType
    stored: str = ""  # its type in words of the source, where that has types


@dataclass(frozen=True, kw_only=True, slots=True)
class SourceRow:
    """One row; ``key`` only where the source names its samples itself."""

    number: int
    values: Mapping[str, Any]
    key: str | None = None


class RowSource(Protocol):
    """A finite table whose rows have fixed numbers. It is small, plain data and pickles; ``rows`` opens the files."""

    @property
    def kind(self) -> str: ...

    @property
    def identity(self) -> str: ...  # a digest of the content, as far as it is cheaply known; not of the place

    @property
    def num_rows(self) -> int: ...

    @property
    def columns(self) -> Sequence[Column] | None: ...  # None: its rows are samples, which pass as they are

    @property
    def keeps_unknown(self) -> bool: ...  # whether a row may have columns that ``columns`` does not list

    @property
    def segments(self) -> Sequence[int] | None: ...  # lengths of runs of rows that are cheap to read only as a whole

    @property
    def media_root(self) -> str | None: ...  # where relative paths of media start, unless the user says otherwise

    def rows(self, numbers: np.ndarray, columns: Sequence[str]) -> Iterator[SourceRow | SampleError]:
        """The rows of these numbers in this order, each as a SourceRow or as the SampleError that it stands for.

        ``columns`` may be left unread where they are not listed. Memory does not depend on how many rows are asked for.
        Raises ShardError where the source itself cannot be read.
        """


def in_chunks(numbers: np.ndarray, read: Callable[[np.ndarray], tuple[list[_T], int]]) -> Iterator[_T]:
    """``read`` of (items, bytes) for runs of the numbers, whose length follows the bytes per row seen so far."""
    start, size = 0, 1
    while start < len(numbers):
        items, num_bytes = read(numbers[start : start + size])
        start += size
        per_row = max(1, num_bytes // max(1, len(items)))
        size = max(1, min(CHUNK_BYTES // per_row, 4 * size, _MAX_CHUNK_ROWS))
        items.reverse()
        while items:
            yield items.pop()  # let go of each row once it is used


def printable(text: str) -> str:
    """The text without halves of surrogate pairs, which neither a file of UTF-8 nor a terminal can hold."""
    return text.encode("utf-8", "backslashreplace").decode("utf-8")


def json_line(value: object) -> bytes:
    """The value as JSON on one line. Half a surrogate pair is escaped, so that reading gives back what was written."""
    return json.dumps(value, ensure_ascii=False).encode("utf-8", "backslashreplace") + b"\n"


def digest(*parts: object) -> str:
    """A short name for content."""
    return hashlib.sha256("\x1f".join(map(str, parts)).encode("utf-8", "backslashreplace")).hexdigest()[:32]
