"""Parquet files enter, a source leaves that is read row group by row group in batches of bounded size."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path
from typing import Any

import numpy as np

from packloom.datasets.convert.arrow_rows import arrow_columns, import_arrow, table_rows
from packloom.datasets.convert.source import CHUNK_BYTES, Column, SourceRow, digest, in_chunks
from packloom.errors import ConfigError, SampleError, ShardError

_MAX_BATCH_ROWS = 128
_SPLIT = re.compile(r"(.+)-\d{5}-of-\d{5}\.parquet$")


@dataclass(frozen=True, kw_only=True)
class ParquetSource:
    """Rows count through the row groups of all files in order."""

    files: tuple[str, ...]
    groups: tuple[tuple[int, int, int], ...]  # (file, row group in it, rows)
    identity: str
    columns: tuple[Column, ...]
    kind: str = "parquet"
    keeps_unknown: bool = False
    media_root: None = None

    @property
    def num_rows(self) -> int:
        return sum(rows for _, _, rows in self.groups)

    @property
    def segments(self) -> tuple[int, ...]:
        return tuple(rows for _, _, rows in self.groups)

    def rows(self, numbers: np.ndarray, columns: Sequence[str]) -> Iterator[SourceRow | SampleError]:
        if (numbers[1:] > numbers[:-1]).all():
            return self._ascending(numbers, columns)
        return in_chunks(numbers, lambda chunk: self._scattered(chunk, columns))

    def _scattered(self, numbers: np.ndarray, columns: Sequence[str]) -> tuple[list[SourceRow | SampleError], int]:
        """Each row group that holds any of the numbers is read once."""
        order = np.argsort(numbers, kind="stable")
        rows: list[SourceRow | SampleError] = [SampleError("not read")] * len(numbers)
        for place, row in zip(order.tolist(), self._ascending(numbers[order], columns), strict=True):
            rows[place] = row
        return rows, CHUNK_BYTES // 64 * len(numbers)  # 64 rows at a time, whatever their size

    def _ascending(self, numbers: np.ndarray, columns: Sequence[str]) -> Iterator[SourceRow]:
        ends = np.array(list(accumulate(self.segments)))
        place = 0
        while place < len(numbers):
            group = int(np.searchsorted(ends, numbers[place], side="right"))
            stop = int(np.searchsorted(numbers, ends[group], side="left"))
            first = int(ends[group]) - self.groups[group][2]
            for number, values in self._read_group(group, first, numbers[place:stop] - first, columns):
                yield SourceRow(number=number, values=values)
            place = stop

    def _read_group(
        self, group: int, first: int, wanted: np.ndarray, columns: Sequence[str]
    ) -> Iterator[tuple[int, dict[str, Any]]]:
        """(row, values) of the wanted rows of a row group, counted from its ``first``; ascending."""
        number, inner, num_rows = self.groups[group]
        try:
            with _open(self.files[number]) as file:
                per_row = max(1, file.metadata.row_group(inner).total_byte_size // max(1, num_rows))
                size = max(1, min(_MAX_BATCH_ROWS, CHUNK_BYTES // per_row))
                start = 0
                for batch in file.iter_batches(size, row_groups=[inner], columns=list(columns), use_threads=False):
                    inside = wanted[(wanted >= start) & (wanted < start + batch.num_rows)] - start
                    picked = batch if len(inside) == batch.num_rows else batch.take(inside)
                    rows = (inside + start + first).tolist()
                    yield from zip(rows, table_rows(picked, rows), strict=True)
                    start += batch.num_rows
                    if start > wanted[-1]:
                        return
        except (OSError, ValueError) as error:  # pyarrow's errors are either
            raise ShardError(f"parquet file {self.files[number]} cannot be read: {error}") from error


def find_parquet(path: Path, *, split: str | None = None) -> ParquetSource:
    """The rows of a file, or of all parquet files of a split below a folder. Raises ShardError."""
    files = _files(path, split)
    groups: list[tuple[int, int, int]] = []
    prints: list[object] = []
    schema: Any = None
    for number, file in enumerate(files):
        try:
            with _open(str(file)) as opened:
                found, meta = opened.schema_arrow, opened.metadata
                groups += [(number, inner, meta.row_group(inner).num_rows) for inner in range(meta.num_row_groups)]
                prints += [file.stat().st_size, _footer(file)]
        except (OSError, ValueError) as error:
            raise ShardError(f"{file} cannot be read as parquet: {error}") from error
        if schema is not None and found.names != schema.names:
            differing = sorted(set(found.names) ^ set(schema.names)) or found.names
            raise ShardError(f"{file} has other columns than {files[0]}: {', '.join(differing)}: convert them apart")
        schema = schema or found
    names = tuple(map(str, files))
    groups = [group for group in groups if group[2]]
    identity = digest("parquet", *prints)
    return ParquetSource(files=names, groups=tuple(groups), identity=identity, columns=arrow_columns(schema))


def _files(path: Path, split: str | None) -> list[Path]:
    """Files named like ``train-00000-of-00004.parquet`` belong to splits, which are not mixed."""
    files = sorted(path.rglob("*.parquet")) if path.is_dir() else [path]
    splits = {file: match[1] for file in files if (match := _SPLIT.match(file.name))}
    if split is not None:
        files = [file for file in files if splits.get(file) == split]
    elif len(set(splits.values())) > 1:
        names = ", ".join(sorted(set(splits.values())))
        raise ConfigError(f"folder {path} holds the splits {names}: choose one with --split")
    if not files:
        raise ShardError(f"{path} holds no .parquet file{f' of a split {split!r}' if split else ''}")
    return files


def _open(path: str) -> Any:
    import_arrow()
    from pyarrow import parquet  # noqa: PLC0415 - optional

    # Without buffers and read-ahead a row group would be in memory as a whole.
    return parquet.ParquetFile(path, pre_buffer=False, buffer_size=1 << 20, page_checksum_verification=True)


def _footer(path: Path) -> str:
    """A digest of the metadata at the end of the file: sizes, places and statistics of all columns."""
    with path.open("rb") as file:
        file.seek(-8, 2)
        length = int.from_bytes(file.read(4), "little")
        file.seek(-8 - length, 2)
        return digest(file.read(length).hex())
