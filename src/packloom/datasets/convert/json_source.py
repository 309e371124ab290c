"""Files of JSON rows enter (LLaVA, ShareGPT, OpenAI messages), a source that reads any of the rows leaves."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from packloom.datasets.convert.json_scan import scan_rows
from packloom.datasets.convert.row_table import open_numbers, write_numbers
from packloom.datasets.convert.source import Column, ColumnType, SourceRow, digest
from packloom.errors import SampleError, ShardError

_SUFFIXES = (".json", ".jsonl", ".ndjson")
#: Rows that are looked at for the names of columns.
_SAMPLED_ROWS = 1000


@dataclass(frozen=True, kw_only=True)
class JsonSource:
    """Rows by their byte ranges, which stand in a table on disk."""

    files: tuple[Path, ...]
    file_rows: tuple[int, ...]  # rows up to the end of each file
    table: Path
    identity: str
    columns: tuple[Column, ...]
    media_root: str | None
    kind: str = "json"
    keeps_unknown: bool = True
    segments: None = None

    @property
    def num_rows(self) -> int:
        return self.file_rows[-1]

    def rows(self, numbers: np.ndarray, columns: Sequence[str]) -> Iterator[SourceRow | SampleError]:
        table = open_numbers(self.table, width=2)
        opened: tuple[int, BinaryIO] | None = None
        try:
            for number in map(int, numbers):
                place = int(np.searchsorted(self.file_rows, number, side="right"))
                if opened is None or opened[0] != place:
                    if opened is not None:
                        opened[1].close()
                    opened = place, self.files[place].open("rb")
                start, stop = map(int, table[number])
                opened[1].seek(start)
                yield _parse(opened[1].read(stop - start), number)
        except OSError as error:
            raise ShardError(f"a file of rows cannot be read: {error}") from error
        finally:
            if opened is not None:
                opened[1].close()


def find_json(path: Path, scratch: Path, *, media_root: str | None = None) -> JsonSource:
    """The rows of a file, or of all JSON files of a folder. Raises ShardError."""
    files = json_files(path)
    table = scratch / "rows.u64"
    ends: list[int] = []
    seen = 0

    def ranges() -> Iterator[int]:
        nonlocal seen
        for file in files:
            for start, stop in scan_rows(file):
                seen += 1
                yield start
                yield stop
            ends.append(seen)

    write_numbers(table, ranges())
    source = JsonSource(
        files=files,
        file_rows=tuple(ends),
        table=table,
        identity=digest("json", *map(_hash, files)),
        columns=(),
        media_root=media_root or str(path if path.is_dir() else path.parent),
    )
    return replace(source, columns=_columns(source))


def json_files(path: Path) -> tuple[Path, ...]:
    """The file, or the JSON files of the folder, sorted."""
    if not path.is_dir():
        return (path,)
    files = sorted(item for item in path.iterdir() if item.suffix.lower() in _SUFFIXES and item.is_file())
    if not files:
        raise ShardError(f"folder {path} holds no {', '.join(_SUFFIXES)} file")
    return tuple(files)


def _parse(data: bytes, number: int) -> SourceRow | SampleError:
    try:
        value = json.loads(data.decode("utf-8"))
    except UnicodeDecodeError as error:
        return SampleError(f"the row is not UTF-8: {error}", code="convert.utf8", hint="write the file as UTF-8")
    except (ValueError, RecursionError) as error:
        return SampleError(f"the row is not JSON: {error}", code="convert.json")
    if not isinstance(value, dict):
        return SampleError(f"the row is {type(value).__name__}, not a JSON object", code="convert.row")
    return SourceRow(number=number, values=value)


def _columns(source: JsonSource) -> tuple[Column, ...]:
    found: dict[str, ColumnType] = {}
    for row in source.rows(np.arange(min(source.num_rows, _SAMPLED_ROWS)), ()):
        if isinstance(row, SourceRow):
            for name, value in row.values.items():
                if value is not None:
                    found.setdefault(name, _type_of(value))
                    if isinstance(value, list) and value and found[name] == "texts":
                        found[name] = _type_of(value)  # an empty list said nothing yet
    return tuple(Column(name=name, type=kind) for name, kind in found.items())


def _type_of(value: Any) -> ColumnType:
    if isinstance(value, str):
        return "text"
    if isinstance(value, (int, float)):
        return "number"
    if isinstance(value, list) and all(isinstance(item, str) for item in value):
        return "texts"
    return "nested"


def _hash(path: Path) -> str:
    with path.open("rb") as file:
        total = hashlib.sha256()
        while chunk := file.read(1 << 20):
            total.update(chunk)
    return total.hexdigest()
