"""Arrow schemas and tables enter; column types, and rows as plain Python values without Arrow's fill-ins, leave."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from packloom.datasets.convert.source import Column, ColumnType
from packloom.errors import CapabilityError

_BLOB_MARK = b"lance-encoding:blob"
_BLOB_V2 = "lance.blob.v2"


def import_arrow() -> Any:
    """pyarrow; raises CapabilityError where it is not installed."""
    try:
        import pyarrow  # noqa: PLC0415 - optional

        return pyarrow
    except ImportError as error:
        raise CapabilityError(f"this source needs pyarrow: pip install 'packloom[lance]' ({error})") from error


def arrow_columns(schema: Any) -> tuple[Column, ...]:
    """The columns of a ``pyarrow.Schema``."""
    return tuple(Column(name=field.name, type=_column_type(field), stored=str(field.type)) for field in schema)


def is_blob(field: Any) -> bool:
    """Whether a Lance field stores its bytes apart: blob v1 is marked in its metadata, v2 has a type of its own."""
    metadata = field.metadata or {}
    names = {metadata.get(b"ARROW:extension:name", b"").decode(), getattr(field.type, "extension_name", "")}
    return metadata.get(_BLOB_MARK) == b"true" or _BLOB_V2 in names


def table_rows(table: Any, numbers: Sequence[int]) -> Iterator[dict[str, Any]]:
    """The rows of a table or batch. Nulls within nested values go: Arrow fills them in for keys that a row lacks.

    Raises ValueError for a value that Python cannot hold, such as a text that is no UTF-8; it names the column and,
    by ``numbers``, the row.
    """
    if table.num_rows != len(numbers):
        raise ValueError(f"{table.num_rows} rows came where {len(numbers)} were asked for")
    columns = list(zip(table.schema.names, table.columns, strict=True))
    for place, number in enumerate(numbers):
        row: dict[str, Any] = {}
        for name, column in columns:
            try:
                row[name] = _plain(column[place].as_py())
            except (ValueError, OverflowError) as error:
                raise ValueError(f"row {number}, column {name!r}: {error}") from error
        yield row


def _plain(value: Any) -> Any:
    """NaN is no JSON either, so that it counts as null."""
    if isinstance(value, Mapping):
        return {name: plain for name, item in value.items() if (plain := _plain(item)) is not None}
    if isinstance(value, (list, tuple)):
        if value and all(isinstance(item, tuple) and len(item) == 2 for item in value):  # a map column
            return {str(name): _plain(item) for name, item in value}
        return [_plain(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _column_type(field: Any) -> ColumnType:
    pa = import_arrow()
    kind = _bare(pa, field.type)
    if is_blob(field) or _is_media(pa, kind):
        return "media"
    if _is_text(pa, kind):
        return "text"
    if pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_boolean(kind):
        return "number"
    if _is_list(pa, kind):
        item = _bare(pa, kind.value_type)
        if _is_text(pa, item) or pa.types.is_integer(item):
            return "texts"
    return "nested" if _is_plain(pa, kind) else "other"


def _bare(pa: Any, kind: Any) -> Any:
    """The type of the values, whether they stand in a dictionary or under a name of somebody's own."""
    kind = getattr(kind, "storage_type", kind)
    return _bare(pa, kind.value_type) if pa.types.is_dictionary(kind) else kind


def _is_media(pa: Any, kind: Any) -> bool:
    """Bytes, struct(bytes, path), or a list of either."""
    kind = _bare(pa, kind)
    if _is_list(pa, kind):
        return _is_media(pa, kind.value_type)
    if pa.types.is_struct(kind):
        names = {field.name for field in kind}
        return "bytes" in names and names <= {"bytes", "path"} and _is_bytes(pa, _bare(pa, kind.field("bytes").type))
    return _is_bytes(pa, kind)


def _is_plain(pa: Any, kind: Any) -> bool:
    """Whether JSON can hold the values."""
    kind = _bare(pa, kind)
    if _is_list(pa, kind):
        return _is_plain(pa, kind.value_type)
    if pa.types.is_struct(kind):
        return all(_is_plain(pa, field.type) or _is_media(pa, field.type) for field in kind)
    if pa.types.is_map(kind):
        return _is_text(pa, _bare(pa, kind.key_type)) and _is_plain(pa, kind.item_type)
    numeric = pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_boolean(kind)
    return bool(numeric or _is_text(pa, kind) or pa.types.is_null(kind))


def _is_text(pa: Any, kind: Any) -> bool:
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_string_view(kind))


def _is_bytes(pa: Any, kind: Any) -> bool:
    checks = (pa.types.is_binary, pa.types.is_large_binary, pa.types.is_fixed_size_binary, pa.types.is_binary_view)
    return any(check(kind) for check in checks)


def _is_list(pa: Any, kind: Any) -> bool:
    return bool(pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind))
