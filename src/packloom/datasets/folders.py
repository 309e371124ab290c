"""Dataset paths enter, the folders of shards that they stand for leave, each with the shards that are meant."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby

from packloom.datasets.files import is_folder
from packloom.datasets.paths import expand_braces, is_url, normalise, split
from packloom.errors import ConfigError, ShardError

Paths = str | os.PathLike[str] | Sequence[str | os.PathLike[str]]

_ONE_OF = "a folder of .tar shards, a .tar file, a brace pattern such as 'shards/shard-{000000..000009}.tar', or a list"


@dataclass(frozen=True, kw_only=True, slots=True)
class Selection:
    """Some shards of one folder in order; ``names`` is None for all of them."""

    folder: str
    names: tuple[str, ...] | None = None


def select_shards(path: Paths) -> list[Selection]:
    """The folders that a dataset path stands for, in order; neighbours of one folder come together.

    A path is a folder, a tar file, a brace pattern, or a list of these; local, or a url that fsspec reads. Raises
    ShardError for an empty path and for what is neither a folder nor a tar.
    """
    paths = [path] if isinstance(path, (str, os.PathLike)) else list(path)
    if not paths or not all(os.fspath(item) for item in paths):
        raise ShardError(f"the dataset path is empty: name {_ONE_OF}")
    found = [item for text in paths for item in _select_one(normalise(text))]
    merged: list[Selection] = []
    for (folder, is_whole), group in groupby(found, key=lambda item: (item.folder, item.names is None)):
        if is_whole:
            merged += group
        else:
            merged.append(Selection(folder=folder, names=tuple(name for item in group for name in item.names or ())))
    return merged


def check_index_dir(selections: Sequence[Selection], index_dir: str | os.PathLike[str] | None) -> str | None:
    """The index folder in plain spelling. Raises ConfigError where it would serve two folders, which it cannot."""
    if index_dir is None:
        return None
    folders = {selection.folder for selection in selections}
    if len(folders) > 1:
        raise ConfigError(
            f"index_dir {os.fspath(index_dir)} can hold the index of one folder, but {len(folders)} are named:"
            " open or index each folder by itself"
        )
    return normalise(index_dir)


def _select_one(path: str) -> list[Selection]:
    if is_folder(path) and "{" not in path:
        return [Selection(folder=path)]
    if os.path.isdir(path):  # a local folder with a brace in its name
        return [Selection(folder=path)]
    shards = [path] if os.path.exists(path) else expand_braces(path)
    for shard in shards:
        if any(letter in shard for letter in "*?[") and not os.path.exists(shard):
            raise ShardError(f"{shard}: wildcards are not expanded: name {_ONE_OF}")
        if not is_url(shard) and not os.path.exists(shard):
            raise ShardError(f"{shard} does not exist: name {_ONE_OF}")
        if not shard.endswith(".tar"):
            raise ShardError(f"{shard} is no folder and no .tar shard: name {_ONE_OF}")
    return [Selection(folder=folder, names=(name,)) for folder, name in map(split, shards)]
