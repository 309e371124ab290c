"""What tasks report enters a journal on disk, line by line; what is done already, and the final lists, leave."""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from uuid import uuid4

from packloom.datasets.convert.source import json_line
from packloom.datasets.convert.task import TaskResult
from packloom.datasets.files import read_file
from packloom.datasets.index import ShardIndex
from packloom.datasets.manifest import ShardEntry, index_path, shard_entry
from packloom.errors import ShardError

JOURNAL_NAME = "progress.jsonl"


@dataclass(frozen=True, kw_only=True, slots=True)
class Done:
    """A task whose shards are in place, and where its line stands in the journal."""

    offset: int
    num_rows: int
    num_samples: int
    shards: tuple[ShardEntry, ...]
    num_bad: int


class Journal:
    """One line per finished task, on disk before the task counts as done. A line that was cut off does not count."""

    def __init__(self, folder: Path, target: Path) -> None:
        self.path = folder / JOURNAL_NAME
        self.done: dict[int, Done] = {}
        self.codes: Counter[str] = Counter()  # of bad rows
        self._target = target
        self._load()
        self._descriptor = os.open(self.path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)

    def add(self, result: TaskResult) -> None:
        """Note a finished task. Raises OSError."""
        line = json_line(result.to_dict())
        offset = os.fstat(self._descriptor).st_size
        written = 0
        while written < len(line):
            written += os.write(self._descriptor, line[written:])
        os.fsync(self._descriptor)
        self._note(result, offset)

    def results(self) -> Iterator[TaskResult]:
        """What each task reported, in the order of tasks; read from disk one by one."""
        with self.path.open("rb") as file:
            for task in sorted(self.done):
                file.seek(self.done[task].offset)
                yield TaskResult.from_dict(json.loads(file.readline()))

    def finish(self, quarantine: Path) -> None:
        """Write the journal anew in the order of tasks, and the bad rows into ``quarantine`` (absent without any)."""
        if self.codes:
            _write_lines(quarantine, self._bad_lines())
        else:
            quarantine.unlink(missing_ok=True)
        _write_lines(self.path, (json_line(result.to_dict()) for result in self.results()))
        self.close()

    def mend(self, quarantine: Path) -> None:
        """Write the bad rows of a finished conversion anew where ``quarantine`` is not, or does not name them."""
        if self.codes and not _holds(quarantine, self._bad_lines()):
            _write_lines(quarantine, self._bad_lines())

    def close(self) -> None:
        """Close the file; a second call does nothing."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1

    def _bad_lines(self) -> Iterator[bytes]:
        return (json_line(asdict(bad)) for result in self.results() for bad in result.bad)

    def _load(self) -> None:
        """Read the journal of an earlier run; tasks whose shards are no longer whole are left out."""
        if not self.path.exists():
            return
        offset = 0
        with self.path.open("rb") as file:
            for line in file:
                if not line.endswith(b"\n"):
                    break
                result = self._parse(line)
                if all(self._is_there(entry) for entry in result.shards):
                    self._note(result, offset)
                offset += len(line)
        os.truncate(self.path, offset)

    def _parse(self, line: bytes) -> TaskResult:
        try:
            return TaskResult.from_dict(json.loads(line))
        except (ValueError, KeyError, TypeError) as error:
            raise ShardError(f"{self.path} is damaged: {error!r:.200}: start anew with --overwrite") from error

    def _note(self, result: TaskResult, offset: int) -> None:
        if result.task not in self.done:  # a task whose shards were lost, and that was done again, has two lines
            self.codes.update(bad.code for bad in result.bad)
        self.done[result.task] = Done(
            offset=offset,
            num_rows=result.num_rows,
            num_samples=result.num_samples,
            shards=result.shards,
            num_bad=len(result.bad),
        )

    def _is_there(self, entry: ShardEntry) -> bool:
        """Whether shard and index are, the one with its size, the other whole and about this shard."""
        path = index_path(str(self.path.parent.parent), entry.name)
        try:
            num_bytes = (self._target / entry.name).stat().st_size
            index = ShardIndex.from_bytes(read_file(path), where=path)
        except (OSError, ShardError):
            return False
        return num_bytes == entry.num_bytes and shard_entry(index, entry.name) == entry


def _holds(path: Path, lines: Iterator[bytes]) -> bool:
    try:
        with path.open("rb") as file:
            return all(file.readline() == line for line in lines) and not file.read(1)
    except OSError:
        return False


def _write_lines(path: Path, lines: Iterator[bytes]) -> None:
    """The file is whole or as it was."""
    hidden = path.with_name(f".{path.name}.{uuid4().hex}.partial")
    try:
        with hidden.open("wb") as file:
            file.writelines(lines)
            file.flush()
            os.fsync(file.fileno())
        os.replace(hidden, path)
    finally:
        hidden.unlink(missing_ok=True)
