"""What tasks report enters a journal on disk, line by line; what is done already, and the final lists, leave."""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from uuid import uuid4

from packloom.datasets.convert.task import TaskResult
from packloom.datasets.manifest import ShardEntry, index_path
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
        line = json.dumps(result.to_dict(), ensure_ascii=False).encode() + b"\n"
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
        rows = (asdict(bad) for result in self.results() for bad in result.bad)
        if self.codes:
            _write_lines(quarantine, rows)
        else:
            quarantine.unlink(missing_ok=True)
        _write_lines(self.path, (result.to_dict() for result in self.results()))
        self.close()

    def close(self) -> None:
        """Close the file; a second call does nothing."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1

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
        self.codes.update(bad.code for bad in result.bad)
        self.done[result.task] = Done(
            offset=offset,
            num_rows=result.num_rows,
            num_samples=result.num_samples,
            shards=result.shards,
            num_bad=len(result.bad),
        )

    def _is_there(self, entry: ShardEntry) -> bool:
        index = Path(index_path(str(self.path.parent.parent), entry.name))
        shard = self._target / entry.name
        return index.exists() and shard.exists() and shard.stat().st_size == entry.num_bytes


def _write_lines(path: Path, items: Iterator[dict[str, object]]) -> None:
    """The file is whole or as it was."""
    hidden = path.with_name(f".{path.name}.{uuid4().hex}.partial")
    try:
        with hidden.open("wb") as file:
            for item in items:
                file.write(json.dumps(item, ensure_ascii=False).encode() + b"\n")
            file.flush()
            os.fsync(file.fileno())
        os.replace(hidden, path)
    finally:
        hidden.unlink(missing_ok=True)
