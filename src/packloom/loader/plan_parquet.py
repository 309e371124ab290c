"""Columns of numbers and a header of plain data go into a parquet file, and come out of it, a row group at a time."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from packloom.errors import CapabilityError, PlanError

_HEADER = b"packloom"

Columns = Mapping[str, np.ndarray]  # name → [K]


class ParquetTable:
    """A file that was opened, by its header; the rows are read when they are asked for, and the file is then closed."""

    def __init__(self, path: Path, header: Mapping[str, Any], num_groups: int) -> None:
        self.path = path
        self.header = header
        self.num_groups = num_groups

    def read(self, group: int) -> Columns:
        """The columns of a row group. Raises PlanError where it cannot be read."""
        pa, parquet = import_parquet()
        try:
            with parquet.ParquetFile(self.path) as file:
                # without threads: a forked worker has none of its parent's
                table = file.read_row_group(group, use_threads=False)
        except (OSError, pa.ArrowException) as error:
            raise _unreadable(self.path, error) from error
        return {name: table.column(name).to_numpy() for name in table.column_names}


def read_parquet(path: Path) -> ParquetTable:
    """Raises PlanError for what is no such file, CapabilityError without pyarrow."""
    pa, parquet = import_parquet()
    try:
        with parquet.ParquetFile(path) as file:
            metadata, num_groups = file.metadata.metadata or {}, file.num_row_groups
        header = json.loads(metadata[_HEADER])
    except (OSError, ValueError, KeyError, pa.ArrowException) as error:
        raise _unreadable(path, error) from error
    return ParquetTable(path, header, num_groups)


def write_parquet(path: Path, header: Mapping[str, Any], groups: Iterable[Columns]) -> None:
    """Write a file at once: a part of it never stands under its name.

    ``header`` is written last, so it may tell what only ``groups`` brings up. Raises CapabilityError without pyarrow.
    """
    pa, parquet = import_parquet()
    path.parent.mkdir(parents=True, exist_ok=True)
    hidden = path.with_name(f".{path.name}.{os.getpid()}.partial")
    writer = None
    try:
        for columns in groups:
            table = pa.table({name: pa.array(values) for name, values in columns.items()})
            writer = writer or parquet.ParquetWriter(hidden, table.schema, compression="zstd")
            writer.write_table(table, row_group_size=max(1, table.num_rows))
        if writer is None:
            raise PlanError(f"there is nothing to write into {path}")
        writer.add_key_value_metadata({_HEADER.decode(): json.dumps(header)})
        writer.close()
        os.replace(hidden, path)
    finally:
        if writer is not None and writer.is_open:
            writer.close()
        hidden.unlink(missing_ok=True)


def import_parquet() -> tuple[Any, Any]:
    """pyarrow and its parquet module; raises CapabilityError where they are not installed."""
    try:
        import pyarrow  # noqa: PLC0415 - optional
        from pyarrow import parquet  # noqa: PLC0415

        return pyarrow, parquet
    except ImportError as error:
        raise CapabilityError(f"a pack plan needs pyarrow: pip install 'packloom[plan]' ({error})") from error


def _unreadable(path: Path, error: Exception) -> PlanError:
    reason = "there is no such file" if isinstance(error, FileNotFoundError) else f"it cannot be read ({error})"
    return PlanError(f"{path}: {reason}: give a file that `packloom plan` has written, or make it again")
