"""A folder that Energon prepared enters, the shards of one split part leave, with what is excluded from them.

Read are ``.nv-meta/.info.json`` (or the older ``.info.yaml``), ``.nv-meta/split.yaml`` (or ``split.json``) and
``.nv-meta/index.uuid``. Nothing is executed: ``dataset.yaml`` and the Python files beside it are not read.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import yaml

from packloom.datasets.files import read_file
from packloom.datasets.paths import expand_braces, join
from packloom.errors import ShardError

META_FOLDER = ".nv-meta"
DEFAULT_PART = "train"  # as in Energon


@dataclass(frozen=True, kw_only=True, slots=True)
class EnergonMeta:
    """The shards of one split part in order."""

    counts: Mapping[str, int]  # name relative to the folder → samples, the excluded ones included
    excluded: Mapping[str, frozenset[str]] = field(default_factory=dict)  # name → keys
    uuid: str = ""


def energon_shard_names(folder: str) -> list[str] | None:
    """All shards that Energon prepared in a folder, of every split part, sorted; None if it prepared none."""
    info = _read(folder, ".info.json", ".info.yaml")
    return None if info is None else sorted(_shard_counts(folder, info))


def read_energon_meta(folder: str, split_part: str | None) -> EnergonMeta | None:
    """The shards of a split part (None: ``train``); None if Energon did not prepare the folder.

    Raises ShardError for a part that is not there, and for files that contradict one another.
    """
    info = _read(folder, ".info.json", ".info.yaml")
    if info is None:
        return None
    counts = _shard_counts(folder, info)
    parts, exclude = _splits(folder)
    part = split_part or DEFAULT_PART
    if part not in parts:
        raise ShardError(
            f"{folder} has no split part {part!r}; it has {', '.join(sorted(parts))}: name one as split_part"
        )
    names = [name for pattern in parts[part] for name in expand_braces(pattern)]
    for name in names:
        if name not in counts:
            raise ShardError(
                f"{folder}: split part {part!r} names shard {name}, which .info.json does not know: {_AGAIN}"
            )
    if len(set(names)) < len(names):
        raise ShardError(f"{folder}: split part {part!r} names a shard twice: {_AGAIN}")
    excludes = {item for pattern in exclude for item in expand_braces(pattern)}
    chosen = {name: counts[name] for name in names if name not in excludes}
    if not chosen:
        raise ShardError(f"{folder}: split part {part!r} is empty: name another one as split_part")
    uuid = _read_text(folder, "index.uuid")
    return EnergonMeta(counts=chosen, excluded=_by_shard(excludes, chosen), uuid=(uuid or "").strip())


_AGAIN = "prepare the folder again"


def _shard_counts(folder: str, info: Any) -> dict[str, int]:
    counts = info.get("shard_counts") if isinstance(info, dict) else None
    if not isinstance(counts, dict) or not all(isinstance(n, int) and n >= 0 for n in counts.values()):
        raise ShardError(f"{folder}/{META_FOLDER}: no shard counts in its .info file: {_AGAIN}")
    return {str(name): count for name, count in counts.items()}


def _splits(folder: str) -> tuple[dict[str, list[str]], list[str]]:
    splits = _read(folder, "split.yaml", "split.json")
    parts = splits.get("split_parts") if isinstance(splits, dict) else None
    if not isinstance(parts, dict) or not all(isinstance(names, list) for names in parts.values()):
        raise ShardError(f"{folder}/{META_FOLDER}: no split_parts in split.yaml: {_AGAIN}")
    exclude = splits.get("exclude") or []
    if not isinstance(exclude, list):
        raise ShardError(f"{folder}/{META_FOLDER}/split.yaml: exclude must be a list, got {exclude!r}")
    return {str(part): [str(name) for name in names] for part, names in parts.items()}, [str(item) for item in exclude]


def _by_shard(excludes: set[str], chosen: Mapping[str, int]) -> dict[str, frozenset[str]]:
    """Excluded samples are written as ``shard.tar/key``."""
    keys: dict[str, set[str]] = {}
    for item in excludes:
        stem, mark, key = item.partition(".tar/")
        if mark and f"{stem}.tar" in chosen:
            keys.setdefault(f"{stem}.tar", set()).add(key)
    return {name: frozenset(group) for name, group in keys.items()}


def _read(folder: str, *names: str) -> Any:
    """The content of the first of these files that is there, else None; JSON goes to the faster parser."""
    for name in names:
        text = _read_text(folder, name)
        if text is not None:
            try:
                return json.loads(text) if name.endswith(".json") else yaml.safe_load(text)
            except (ValueError, yaml.YAMLError, RecursionError) as error:
                raise ShardError(f"{folder}/{META_FOLDER}/{name} is damaged: {error}") from error
    return None


def _read_text(folder: str, name: str) -> str | None:
    try:
        return read_file(join(join(folder, META_FOLDER), name)).decode("utf-8")
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (OSError, UnicodeDecodeError) as error:
        raise ShardError(f"{folder}/{META_FOLDER}/{name} cannot be read: {error}") from error
