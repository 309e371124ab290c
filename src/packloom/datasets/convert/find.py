"""A path and settings enter; the source that lies there, what its columns become and its media table leave."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from packloom.datasets.convert.columns import ColumnMap, map_columns
from packloom.datasets.convert.folder_source import find_folder, holds_images
from packloom.datasets.convert.hf_source import find_hf, is_hf_folder
from packloom.datasets.convert.json_source import find_json
from packloom.datasets.convert.lance_source import find_lance
from packloom.datasets.convert.media_table import MediaTableSpec, index_media_table
from packloom.datasets.convert.parquet_source import find_parquet
from packloom.datasets.convert.settings import ConvertConfig, SourceKind
from packloom.datasets.convert.source import RowSource
from packloom.datasets.convert.tar_source import find_tars
from packloom.datasets.paths import is_url
from packloom.errors import ConfigError, ShardError

_KNOWN = "a Lance dataset, parquet, a Hugging Face dataset, JSON or JSONL, a folder of images with captions, tar shards"


@dataclass(frozen=True, kw_only=True)
class Found:
    """What a worker needs to know about the source; plain data."""

    source: RowSource
    columns: ColumnMap | None  # None: rows pass as they are
    media_root: str | None
    media_table: MediaTableSpec | None


def find_source(path: str, config: ConvertConfig, scratch: Path) -> Found:
    """Open the source, count its rows and map its columns; tables on disk go into ``scratch``.

    Must run in a spawned process where ``needs_spawn`` says so. Raises ShardError, ConfigError, CapabilityError.
    """
    kind = config.kind or guess_kind(path)
    source = _find(kind, path, config, scratch)
    if source.num_rows == 0:
        raise ShardError(f"{path} holds no rows{' that the filter keeps' if config.filter else ''}")
    columns = map_columns(source, config)
    table = None
    if config.media_table is not None:
        media = _find_table(config.media_table, scratch / "media")
        table = index_media_table(media, scratch / "media", key=config.media_key, value=config.media_value)
    root = config.media_root or source.media_root
    if root is not None and not Path(root).is_dir():
        raise ConfigError(f"the media root {root} is no folder")
    _check_paths(columns, source, has_place=root is not None or table is not None)
    return Found(source=source, columns=columns, media_root=root, media_table=table)


def find_in_place(call: tuple[str, ConvertConfig, Path]) -> Found:
    """``find_source`` of one argument, as a runner calls it."""
    return find_source(*call)


def guess_kind(path: str) -> SourceKind:
    """The kind of source by what lies at the path, without opening it. Raises ShardError."""
    place = Path(path)
    if path.rstrip("/").endswith(".lance") or (place / "_versions").is_dir():
        return "lance"
    if path.endswith(".tar") or "{" in path:
        return "tar"
    if is_url(path):
        raise ShardError(f"{path} is a url; only Lance datasets are converted from urls: fetch it first")
    if not place.exists():
        raise ShardError(f"{path} does not exist (for a dataset of the Hugging Face Hub, add --from hf)")
    kind = _kind_of_folder(place) if place.is_dir() else _kind_of_file(place)
    if kind is None:
        raise ShardError(f"{path} is not understood; what is: {_KNOWN}. If it is one of these, say so with --from")
    return kind


def needs_spawn(path: str, config: ConvertConfig) -> bool:
    """Whether Lance takes part, which only spawned processes may open."""
    kinds = [config.kind or guess_kind(path)]
    if config.media_table is not None:
        kinds.append(guess_kind(config.media_table))
    return "lance" in kinds


def _kind_of_folder(place: Path) -> SourceKind | None:
    if is_hf_folder(place):
        return "hf"
    names = {item.name for item in place.iterdir() if not item.name.startswith(".")}
    if any(name.endswith(".tar") for name in names) or (place / ".nv-meta").is_dir():
        return "tar"
    if names & {"metadata.jsonl", "metadata.csv"}:
        return "folder"
    if next(place.rglob("*.parquet"), None) is not None:
        return "parquet"
    if any(name.lower().endswith((".json", ".jsonl", ".ndjson")) for name in names):
        return "json"
    return "folder" if holds_images(place) else None


def _kind_of_file(place: Path) -> SourceKind | None:
    kinds: dict[str, SourceKind] = {".parquet": "parquet", ".json": "json", ".jsonl": "json", ".ndjson": "json"}
    return kinds.get(place.suffix.lower())


def _find(kind: SourceKind, path: str, config: ConvertConfig, scratch: Path) -> RowSource:
    if kind == "lance":
        return find_lance(path, scratch, version=config.version, filter=config.filter)
    for name in ("version", "filter"):
        if getattr(config, name) is not None:
            raise ConfigError(f"{name} is for Lance datasets; {path} is {kind}")
    if kind == "hf":
        return find_hf(path, subset=config.subset, split=config.split)
    if not Path(path).exists() and kind != "tar":
        raise ShardError(f"{path} does not exist")
    if kind == "parquet":
        return find_parquet(Path(path), split=config.split)
    if kind == "json":
        return find_json(Path(path), scratch)
    return find_folder(Path(path), scratch) if kind == "folder" else find_tars(path, scratch)


def _find_table(path: str, scratch: Path) -> RowSource:
    kind = guess_kind(path)
    if kind not in ("lance", "parquet", "hf"):
        raise ConfigError(f"the media table {path} is {kind}: Lance, parquet or a Hugging Face dataset is needed")
    return _find(kind, path, ConvertConfig(), scratch)


def _check_paths(columns: ColumnMap | None, source: RowSource, *, has_place: bool) -> None:
    """A column of texts names files, or keys: say so at once, rather than for each row."""
    if columns is None or has_place:
        return
    types = {column.name: column.type for column in source.columns or ()}
    named = [name for _, name in columns.media if types.get(name) in ("text", "texts", "number")]
    if named:
        raise ConfigError(
            f"column {named[0]!r} holds no bytes but names of media: say where they are with --media-root FOLDER, or"
            " with --media-table TABLE if they are keys (in place: ?media_root=FOLDER, ?media_table=TABLE)"
        )
