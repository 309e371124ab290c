"""A row and the meaning of its columns enter, a shard sample leaves: what the row says, and its media byte for byte."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

from packloom.datasets.convert.columns import MEDIA_FIELDS, ColumnMap
from packloom.datasets.convert.media import MediaReader
from packloom.datasets.convert.source import SourceRow
from packloom.errors import SampleError

#: Fields that may come as JSON text, as many tables store them.
_JSON_FIELDS = ("messages", "conversations", "tools", "answers")
#: What a typed part of a message may have a medium under.
_PAYLOADS = tuple(name for kind in MEDIA_FIELDS.values() for name in (kind, f"{kind}_url"))


def build_sample(row: SourceRow, columns: ColumnMap | None, media: MediaReader, *, key: str) -> dict[str, Any]:
    """``{"__key__": key, "json": {...}, "0.jpg": bytes, ...}``. Raises SampleError.

    The json part has the row's fields under the names that readers know, with what stood in them. Media become parts,
    numbered in the order of their columns and places; ``images`` and the like, and typed parts of messages, name them.
    A row without a medium in a column is a row without a medium; null within a list is an error.
    """
    if columns is None:
        return {**row.values, "__key__": key}
    parts = _Parts(media)
    json_row: dict[str, Any] = {}
    for field, column in columns.fields:
        value = row.values.get(column)
        if value is not None:
            json_row[field] = _parse(value, field) if field in _JSON_FIELDS else value
    listed = _listed_media(row, columns, parts)
    for field in ("messages", "conversations"):
        if isinstance(json_row.get(field), list):
            json_row[field] = [_with_parts(turn, parts, f"message {n}") for n, turn in enumerate(json_row[field])]
    json_row |= listed
    for name, value in row.values.items():
        if name in columns.kept or (columns.keeps_unknown and _is_unknown(name, columns)):
            json_row.setdefault(name, value)
    return {"__key__": key, "json": {name: item for name, item in json_row.items() if item is not None}, **parts.found}


def media_values(row: SourceRow, columns: ColumnMap | None) -> Iterator[Any]:
    """What the media columns of a row hold."""
    return (row.values.get(column) for _, column in (columns.media if columns is not None else ()))


class _Parts:
    """The media of one sample under their names."""

    def __init__(self, media: MediaReader) -> None:
        self._media = media
        self._names: dict[str, str] = {}  # text that stood for a medium → its part
        self.found: dict[str, bytes] = {}

    def add(self, value: Any, where: str) -> str:
        """Read a medium; the name of its part."""
        data, extension = self._media.read(value, where)
        name = f"{len(self.found)}.{extension}"
        self.found[name] = data
        text = value.get("path") if isinstance(value, Mapping) else value
        if isinstance(text, str):
            self._names.setdefault(text, name)
        return name

    def name_of(self, value: Any, where: str) -> str:
        """The part that a reference stands for; one that came before is not stored twice."""
        known = self._names.get(value) if isinstance(value, str) else None
        return known or self.add(value, where)


def _listed_media(row: SourceRow, columns: ColumnMap, parts: _Parts) -> dict[str, list[str]]:
    """Field → names of parts, for each kind of which the row has any."""
    listed: dict[str, list[str]] = {}
    seen: list[tuple[str, Any]] = []
    for kind, column in columns.media:
        value = row.values.get(column)
        if value is None or _is_null_struct(value):
            continue
        items = value if isinstance(value, list) else [value]
        if columns.keeps_unknown and (kind, items) in seen:
            continue  # JSON rows may say the same under image and images
        seen.append((kind, items))
        names = [
            parts.add(item, f"{column}[{place}]" if isinstance(value, list) else column)
            for place, item in enumerate(items)
        ]
        if names:
            listed.setdefault(f"{kind}s", []).extend(names)
    return listed


def _is_null_struct(value: Any) -> bool:
    """Arrow and JSON say null for ``{"bytes": null, "path": null}`` in more than one way."""
    return isinstance(value, Mapping) and not any(item is not None for item in value.values())


def _with_parts(turn: Any, parts: _Parts, where: str) -> Any:
    """The message with the media of its typed parts replaced by names of parts of the sample."""
    if not isinstance(turn, Mapping):
        return turn
    changed = dict(turn)
    for name in ("content", "value"):
        if isinstance(turn.get(name), list):
            changed[name] = [_with_part(part, parts, f"part {n} of {where}") for n, part in enumerate(turn[name])]
    return changed


def _with_part(part: Any, parts: _Parts, where: str) -> Any:
    if not isinstance(part, Mapping):
        return part
    changed = dict(part)
    for name in _PAYLOADS:
        value = part.get(name)
        if isinstance(value, Mapping) and "url" in value:
            changed[name] = {**value, "url": parts.name_of(value["url"], where)}
        elif value is not None and not _is_null_struct(value):
            changed[name] = parts.name_of(value, where)
    return changed


def _is_unknown(name: str, columns: ColumnMap) -> bool:
    """Whether no setting speaks of this column of a row."""
    return name not in columns.read and name not in {column for column, _ in columns.left_out}


def _parse(value: Any, field: str) -> Any:
    if not isinstance(value, str):
        return value
    try:
        return json.loads(value)
    except (ValueError, RecursionError) as error:
        if field == "answers":
            return [value]
        raise SampleError(f"{field} is a text that is not JSON: {error}", code="convert.json") from error
