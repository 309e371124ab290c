"""The settings of a conversion enter by keyword or from a YAML file, one frozen and checked dataclass leaves."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, Literal, get_args

import yaml

from packloom.config_fields import from_mapping
from packloom.errors import ConfigError

SourceKind = Literal["lance", "parquet", "hf", "json", "folder", "tar"]

#: What a shard's json part may have under a column's value; ``images`` and the like become parts of the sample.
FIELDS = (
    "messages", "conversations", "question", "answer", "answers", "caption", "system", "tools", "id",
    "images", "videos", "audios",
)  # fmt: skip
#: Places of files, which may differ from run to run without a difference in what is written.
_PLACES = ("media_root", "media_table")


@dataclass(frozen=True, kw_only=True)
class ConvertConfig:
    """How a source becomes shards. All but the places of files decides the bytes that are written."""

    kind: SourceKind | None = None  # None: by what lies at the path
    columns: tuple[tuple[str, str], ...] = ()  # (field of FIELDS, column); others are found by name and type
    drop: tuple[str, ...] = ()  # columns that are left out
    media_root: str | None = None  # where relative paths of media start
    media_table: str | None = None  # a Lance or parquet table that holds media by key
    media_key: str = "id"  # its column of keys
    media_value: str = "image"  # its column of bytes
    filter: str | None = None  # SQL that keeps rows of a Lance dataset
    version: int | None = None  # of a Lance dataset
    split: str | None = None  # of a Hugging Face dataset
    subset: str | None = None  # of a Hugging Face dataset: its configuration
    samples_per_shard: int = 1000
    max_shard_bytes: int = 1 << 30
    shuffle: bool = False  # all rows, by a permutation
    seed: int = 0

    def __post_init__(self) -> None:
        _require(self.kind in (None, *get_args(SourceKind)), f"kind must be one of {get_args(SourceKind)}")
        for name in ("samples_per_shard", "max_shard_bytes"):
            _require(getattr(self, name) >= 1, f"{name} must be at least 1, got {getattr(self, name)}")
        for field, column in self.columns:
            _require(field in FIELDS, f"columns: there is no field {field!r}; known: {', '.join(FIELDS)}")
            _require(bool(column), f"columns: the field {field!r} needs the name of a column")
        _require(self.version is None or self.version >= 1, f"version: Lance counts from 1, got {self.version}")
        only_lance = self.kind in (None, "lance")
        _require(only_lance or self.filter is None, f"filter is for Lance, not for {self.kind}")
        _require(only_lance or self.version is None, f"version is for Lance, not for {self.kind}")

    @property
    def shaping(self) -> dict[str, Any]:
        """What decides the bytes that are written, as plain data for JSON."""
        values = {field.name: getattr(self, field.name) for field in fields(self) if field.name not in _PLACES}
        plain = {name: list(value) if isinstance(value, tuple) else value for name, value in values.items()}
        return plain | {"columns": [list(pair) for pair in self.columns], "media_table": self.media_table is not None}


def read_config(path: str | Path) -> dict[str, Any]:
    """The keywords of a ConvertConfig from a YAML file; ``columns`` maps a field to a column or a list of them."""
    try:
        data = yaml.safe_load(Path(path).read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"cannot read {path}: {error.strerror}") from error
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path} is not plain YAML: {error}") from error
    if not isinstance(data, Mapping):
        raise ConfigError(f"{path} must hold a mapping with settings such as columns and samples_per_shard")
    values = dict(data)
    columns = values.pop("columns", {})
    if not isinstance(columns, Mapping):
        raise ConfigError(f"{path}: columns must map fields to columns, got {columns!r}")
    pairs = [
        (str(field), str(name))
        for field, names in columns.items()
        for name in (names if isinstance(names, list) else [names])
    ]
    config = from_mapping(ConvertConfig, values, where=str(path))
    return {name: getattr(config, name) for name in values} | {"columns": tuple(pairs)}


def _require(condition: bool, message: str) -> None:
    if not condition:
        raise ConfigError(message)
