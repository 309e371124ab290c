"""The text that names a Lance dataset and how to read it goes in, a path and the settings of a conversion come out."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any
from urllib.parse import unquote

from packloom.datasets.convert.settings import FIELDS, ConvertConfig
from packloom.errors import ConfigError

_SETTINGS = ("filter", "media_root", "media_table", "media_key", "media_value")


def is_lance(path: str | Sequence[str]) -> bool:
    """Whether a source names a Lance dataset; nothing is opened."""
    if not isinstance(path, str):
        return False
    place = path.partition("?")[0]
    return place.rstrip("/").endswith(".lance") or (Path(place) / "_versions").is_dir()


def parse_address(address: str) -> tuple[str, ConvertConfig]:
    """``data.lance?version=7&filter=score > 3&images=photo`` as its path and its settings.

    Names are those of ConvertConfig that make sense in place, ``drop``, or a field of a sample with the column that it
    is found in. ``%26`` stands for an ``&`` in a value, ``%25`` for a ``%``. Raises ConfigError.
    """
    path, _, query = address.partition("?")
    values: dict[str, Any] = {}
    columns: list[tuple[str, str]] = []
    drop: list[str] = []
    for pair in query.split("&") if query else ():
        name, _, text = pair.partition("=")
        value = unquote(text)
        if not value or (name == "version" and not value.isdecimal()):
            raise ConfigError(f"{address!r}: {pair!r} is not NAME=VALUE, as in data.lance?version=7")
        if name in FIELDS:
            columns.append((name, value))
        elif name == "drop":
            drop.append(value)
        elif name in ("version", *_SETTINGS) and name not in values:
            values[name] = int(value) if name == "version" else value
        else:
            known = ", ".join(("version", *_SETTINGS, "drop", *FIELDS))
            raise ConfigError(f"{address!r}: {name!r} is stated twice, or no setting of a Lance dataset: {known}")
    return path, ConvertConfig(kind="lance", columns=tuple(columns), drop=tuple(drop), **values)
