"""A Lance dataset enters, a source leaves whose rows are taken from anywhere: bytes, blobs of both kinds, paths."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from packloom.datasets.convert.arrow_rows import arrow_columns, is_blob, table_rows
from packloom.datasets.convert.row_table import open_numbers, write_numbers
from packloom.datasets.convert.source import Column, SourceRow, digest, in_chunks
from packloom.errors import CapabilityError, ConfigError, SampleError, ShardError
from packloom.image_size import image_size

#: What pylance raises for anything from a missing file to damaged data.
LANCE_ERRORS = (OSError, ValueError, RuntimeError)
#: Bytes of a blob that nearly always hold a JPEG's header, its EXIF data included.
_HEAD_BYTES = 16 << 10
_JPEG = b"\xff\xd8\xff"


@dataclass(frozen=True, kw_only=True)
class LanceSource:
    """Rows of one version, all of them or those that a filter keeps. Only spawned processes may call ``rows``.

    A process that opened Lance runs its threads, which a forked child would wait for in vain.
    """

    uri: str
    version: int
    num_rows: int
    identity: str
    columns: tuple[Column, ...]
    blobs: frozenset[str]
    offsets: Path | None  # with a filter: where each row stands in the dataset
    kind: str = "lance"
    keeps_unknown: bool = False
    segments: None = None
    media_root: None = None

    def rows(self, numbers: np.ndarray, columns: Sequence[str]) -> Iterator[SourceRow | SampleError]:
        reader = _open_reader(self)
        return in_chunks(numbers, lambda chunk: reader.read(chunk, columns))


class LanceReader:
    """An opened source; it belongs to the process that opened it."""

    def __init__(self, source: LanceSource) -> None:
        self._source = source
        self._dataset = open_lance(source.uri, source.version)
        self._places = None if source.offsets is None else open_numbers(source.offsets)

    def read(self, numbers: np.ndarray, columns: Sequence[str], *, heads: bool = False) -> tuple[list[SourceRow], int]:
        """These rows at once, and their size in bytes. Raises ShardError.

        With ``heads``, a JPEG in a blob column is cut off behind its header where the header says how large it is.
        """
        indices = (numbers if self._places is None else self._places[numbers]).astype(np.int64).tolist()
        read_blobs = _blob_heads if heads else _blobs
        try:
            rows, num_bytes = _take_rows(self._dataset, indices, columns, self._source.blobs, read_blobs)
        except LANCE_ERRORS as error:
            raise ShardError(f"rows {indices[0]} ff. of {self._source.uri} cannot be read: {error}") from error
        found = zip(numbers.tolist(), rows, strict=True)
        return [SourceRow(number=number, values=values) for number, values in found], num_bytes


@lru_cache(maxsize=1)
def _open_reader(source: LanceSource) -> LanceReader:
    """One for all tasks of a process: Lance reads its tables of pages anew for each dataset that is opened."""
    return LanceReader(source)


def find_lance(uri: str, scratch: Path, *, version: int | None = None, filter: str | None = None) -> LanceSource:
    """A version of a dataset (None: the newest), and the rows of it that an SQL filter keeps.

    Raises ShardError for no dataset or version, ConfigError for a filter that Lance does not understand.
    """
    dataset = open_lance(uri, version)
    offsets = None
    num_rows = dataset.count_rows()
    if filter is not None:
        offsets = scratch / "offsets.u64"
        try:
            num_rows = write_numbers(offsets, _kept_offsets(dataset, filter))
        except LANCE_ERRORS as error:
            raise ConfigError(f"the filter {filter!r} cannot be used on {uri}: {error}") from error
    return LanceSource(
        uri=uri,
        version=dataset.version,
        num_rows=num_rows,
        identity=digest("lance", *_content(dataset), filter),
        columns=arrow_columns(dataset.schema),
        blobs=frozenset(field.name for field in dataset.schema if is_blob(field)),
        offsets=offsets,
    )


def _content(dataset: Any) -> tuple[object, ...]:
    """What decides the value of each column in each row: the files, and which field of them a name stands for.

    Not the version: a newer one of the same content, as after an index was built, is the same dataset.
    """
    fragments = [
        (
            part.fragment_id,
            [(file.path, list(file.fields), list(file.column_indices)) for file in part.data_files()],
            str(part.deletion_file()),
            part.metadata.to_json().get("overlays") or None,  # files of changed values; older pylance has none
        )
        for part in dataset.get_fragments()
    ]
    return fragments, [_field_facts(field) for field in dataset.lance_schema.fields()]


def _field_facts(field: Any) -> tuple[object, ...]:
    """A field's name, what it is called in the files, its type, and whether its bytes stand apart."""
    arrow = field.to_arrow()
    children = [_field_facts(child) for child in field.children()]
    return field.name(), field.id(), str(arrow.type), is_blob(arrow), children


def open_lance(uri: str, version: int | None) -> Any:
    """The ``lance.LanceDataset``; raises ShardError, CapabilityError without pylance."""
    try:
        import lance  # noqa: PLC0415 - optional
    except ImportError as error:
        raise CapabilityError(f"a Lance dataset needs pylance: pip install 'packloom[lance]' ({error})") from error
    try:
        return lance.dataset(uri, version=version)
    except LANCE_ERRORS as error:
        which = "" if version is None else f" in version {version}"
        raise ShardError(f"{uri} cannot be opened as a Lance dataset{which}: {error}") from error


def _take_rows(
    dataset: Any,
    indices: list[int],
    columns: Sequence[str],
    blobs: frozenset[str],
    read_blobs: Callable[[Any, str, list[int]], list[bytes | None]],
) -> tuple[list[dict[str, Any]], int]:
    """The values of these columns for rows by their place in the dataset, in this order, and their size in bytes."""
    plain = [name for name in columns if name not in blobs]
    rows: list[dict[str, Any]] = [{} for _ in indices]
    num_bytes = 0
    if plain:
        table = dataset.take(indices, columns=plain)
        num_bytes = table.nbytes
        rows = list(table_rows(table, indices))
    for name in columns:
        if name in blobs:
            for row, data in zip(rows, read_blobs(dataset, name, indices), strict=True):
                row[name] = data
                num_bytes += len(data or b"")
    return rows, num_bytes


def _blobs(dataset: Any, name: str, indices: list[int]) -> list[bytes | None]:
    return [data for _, data in dataset.read_blobs(name, indices=indices, preserve_order=True)]


def _blob_heads(dataset: Any, name: str, indices: list[int]) -> list[bytes | None]:
    """Of other formats than JPEG the whole: what turns an image round may stand behind its pixels."""
    heads: list[bytes | None] = []
    cut: list[int] = []
    for place, file in enumerate(dataset.take_blobs(name, indices=indices, buffer_size=0)):
        size = 0 if file is None else file.size()
        head = bytes(file.read_range(0, min(size, _HEAD_BYTES))) if size else b""
        heads.append(None if file is None else head)
        if size > len(head) and not (head.startswith(_JPEG) and all(image_size(head))):
            cut.append(place)
    for place, data in zip(cut, _blobs(dataset, name, [indices[place] for place in cut]) if cut else (), strict=True):
        heads[place] = data
    return heads


def _kept_offsets(dataset: Any, filter: str) -> Iterator[int]:
    scan = dataset.scanner(columns=["_rowoffset"], filter=filter, scan_in_order=True)
    for batch in scan.to_batches():
        yield from batch.column(0).to_pylist()
