"""Tar shards enter, an index file per shard and a manifest leave; finished shards are not indexed again."""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path
from typing import Any

from tqdm import tqdm

from packloom.datasets.energon_meta import energon_shard_names
from packloom.datasets.files import fetch_file, list_tars, read_file, status, write_file
from packloom.datasets.folders import Paths, Selection, check_index_dir, select_shards
from packloom.datasets.index import ShardIndex
from packloom.datasets.index_shard import index_shard
from packloom.datasets.manifest import (
    Manifest,
    ShardEntry,
    index_path,
    index_root,
    read_manifest,
    shard_entry,
    write_manifest,
)
from packloom.datasets.paths import is_url, join
from packloom.errors import ConfigError, ReadError, ShardError

#: A forked child of a program with threads may wait for ever for a lock that nobody frees.
START_METHOD = "spawn"


@dataclass(frozen=True, kw_only=True, slots=True)
class IndexReport:
    """What ``build_index`` found and did."""

    manifests: dict[str, Manifest]  # by folder of shards
    num_indexed: int  # shards that were read in this call
    num_skipped: int  # shards whose index was up to date
    faults: list[tuple[str, ReadError]]  # (shard, what was left out of it), of skipped shards too
    failures: list[tuple[str, str]]  # (shard that has no index, why)

    @property
    def num_samples(self) -> int:
        """Good samples in all manifests."""
        return sum(manifest.num_samples for manifest in self.manifests.values())


def build_index(
    path: Paths,
    *,
    index_dir: str | os.PathLike[str] | None = None,
    num_workers: int = 0,
    rebuild: bool = False,
    progress: bool = False,
) -> IndexReport:
    """Index WebDataset tars: a folder, a tar, a brace pattern, or a list of these, local or a url.

    The index goes into ``.packloom/`` beside the shards, or into ``index_dir`` (for one folder of shards, e.g. one that
    is read-only or a url). Each shard gets its index file as soon as it is done, so a run that was stopped goes on
    where it was. A shard whose size and time have not changed since is skipped, but with ``rebuild=True``. The shards
    of a url are copied to a temporary folder one at a time per worker; their time is not known, so that size alone
    tells whether one has changed.

    ``num_workers`` processes share the shards (0 or 1: this process; a script that asks for more needs the usual
    ``if __name__ == "__main__"``). ``progress`` shows a bar on stderr where that is a terminal.

    A damaged shard stops nothing: its undamaged samples are indexed and the rest is in ``report.faults``. A shard that
    cannot be read is in ``report.failures`` and not in the manifest. Raises ShardError if there is no shard or the
    index cannot be written, ConfigError for settings that cannot work.
    """
    if num_workers < 0:
        raise ConfigError(f"num_workers must not be negative, got {num_workers}")
    selections = select_shards(path)
    own_root = check_index_dir(selections, index_dir)
    names = _names_by_folder(selections)
    roots = {folder: own_root or index_root(folder) for folder in names}
    tasks = [_Task(folder, name, roots[folder], rebuild) for folder, group in names.items() for name in group]
    results = _run(tasks, num_workers, progress)
    done = [result for result in results if result.entry is not None]
    return IndexReport(
        manifests={folder: _update_manifest(folder, root, results) for folder, root in roots.items()},
        num_indexed=sum(not result.was_fresh for result in done),
        num_skipped=sum(result.was_fresh for result in done),
        faults=[(result.task.path, fault) for result in results for fault in result.faults],
        failures=[(result.task.path, result.failure) for result in results if result.failure],
    )


@dataclass(frozen=True, slots=True)
class _Task:
    """One shard to index."""

    folder: str
    name: str
    root: str
    rebuild: bool

    @property
    def path(self) -> str:
        return join(self.folder, self.name)


@dataclass(frozen=True, kw_only=True, slots=True)
class _Result:
    task: _Task
    entry: ShardEntry | None = None
    was_fresh: bool = False
    faults: tuple[ReadError, ...] = ()
    failure: str = ""


def _names_by_folder(selections: Sequence[Selection]) -> dict[str, list[str]]:
    names: dict[str, list[str]] = {}
    for selection in selections:
        found = list(selection.names) if selection.names is not None else _list_folder(selection.folder)
        known = names.setdefault(selection.folder, [])
        known += [name for name in dict.fromkeys(found) if name not in set(known)]
    return names


def _list_folder(folder: str) -> list[str]:
    """All shards of a folder; one that Energon prepared names its shards, which may lie deeper."""
    names = energon_shard_names(folder)
    try:
        names = list_tars(folder) if names is None else names
    except OSError as error:
        hint = ": name its shards, e.g. with a brace pattern" if is_url(folder) else ""
        raise ShardError(f"folder {folder} cannot be listed: {error}{hint}") from error
    if not names:
        raise ShardError(f"folder {folder} holds no .tar shards: name a folder that does")
    return names


def _run(tasks: Sequence[_Task], num_workers: int, progress: bool) -> list[_Result]:
    """The results in the order of the tasks."""
    hidden = None if progress else True  # None: hidden where stderr is no terminal
    bar: tqdm[Any]
    with tqdm(total=len(tasks), unit="shard", desc="index", disable=hidden, file=sys.stderr) as bar:
        results: dict[_Task, _Result] = {}
        for task in tasks:  # here, since a worker takes longer to start than many of these look-ups
            if not task.rebuild and (index := _fresh_index(task)):
                entry = shard_entry(index, task.name)
                results[task] = _Result(task=task, entry=entry, was_fresh=True, faults=index.faults)
                bar.update()
        stale = [task for task in tasks if task not in results]
        if num_workers > 1 and len(stale) > 1:
            results |= zip(stale, _run_parallel(stale, min(num_workers, len(stale)), bar), strict=True)
            return [results[task] for task in tasks]
        for task in stale:
            results[task] = _index(task)
            bar.update()
    return [results[task] for task in tasks]


def _run_parallel(tasks: Sequence[_Task], num_workers: int, bar: tqdm[Any]) -> list[_Result]:
    num_done = 0
    with ProcessPoolExecutor(num_workers, mp_context=get_context(START_METHOD)) as pool:
        futures = [pool.submit(_index, task) for task in tasks]
        try:
            for future in as_completed(futures):
                future.result()
                num_done += 1
                bar.update()
        except BrokenProcessPool as error:
            raise ShardError(
                f"a worker died after {num_done} of {len(tasks)} shards (killed, out of memory, or the calling script"
                ' lacks `if __name__ == "__main__"`): run it again, finished shards are kept'
            ) from error
        finally:
            pool.shutdown(cancel_futures=True)
    return [future.result() for future in futures]


def _index(task: _Task) -> _Result:
    try:
        with _local_copy(task.path) as local:
            index = index_shard(local, name=task.name)
    except OSError as error:
        return _Result(task=task, failure=f"cannot be read: {error.strerror or error}")
    except ShardError as error:
        return _Result(task=task, failure=str(error))
    try:
        write_file(index_path(task.root, task.name), index.to_bytes())
    except OSError as error:
        raise _cannot_write(task.root, error) from error
    return _Result(task=task, entry=shard_entry(index, task.name), faults=index.faults)


def _fresh_index(task: _Task) -> ShardIndex | None:
    """The index of a shard if it is there, whole, and as old as the shard."""
    where = index_path(task.root, task.name)
    try:
        index = ShardIndex.from_bytes(read_file(where), where=where)
        found = status(task.path)
    except (OSError, ShardError):
        return None  # it is made anew
    return index if found.size == index.shard_bytes and found.mtime_ns in (None, index.mtime_ns) else None


@contextmanager
def _local_copy(path: str) -> Iterator[str]:
    if not is_url(path):
        yield path
        return
    with tempfile.TemporaryDirectory(prefix="packloom-index-") as folder:
        target = Path(folder, "shard.tar")
        fetch_file(path, target)
        yield str(target)


def _update_manifest(folder: str, root: str, results: Sequence[_Result]) -> Manifest:
    """The manifest of a folder: the shards of this call, and those of earlier calls that are still there."""
    own = [result for result in results if result.task.folder == folder]
    seen = {result.task.name for result in own}
    try:
        earlier = read_manifest(root, next_move="")
    except ShardError:
        earlier = None  # it is replaced
    kept = [e for e in earlier.shards if e.name not in seen and _is_there(folder, e)] if earlier else []
    try:
        return write_manifest(root, [*kept, *(result.entry for result in own if result.entry is not None)])
    except OSError as error:
        raise _cannot_write(root, error) from error


def _is_there(folder: str, entry: ShardEntry) -> bool:
    try:
        return status(join(folder, entry.name)).size == entry.num_bytes
    except OSError:
        return False


def _cannot_write(root: str, error: OSError) -> ShardError:
    hint = "name another folder with index_dir (--index-dir)"
    return ShardError(f"the index cannot be written into {root}: {error.strerror or error}: {hint}")
