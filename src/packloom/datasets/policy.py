"""Sample errors enter, counts, records and a quarantine file leave, and an error once too many fail in a row."""

from __future__ import annotations

import json
import os
from collections import Counter
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal

from packloom.errors import ConfigError, SampleError, TooManyErrors

#: Where a sample fails. Each stage has its own run of failures, since stages buffer: a success further up says
#: nothing about the samples that wait for a later stage.
Stage = Literal["read", "encode", "media"]


@dataclass(frozen=True, kw_only=True, slots=True)
class SkipRecord:
    """One skipped sample; plain data."""

    key: str
    source: str  # the shard, or "" where it is not known
    stage: str
    code: str  # short stable name of the kind of fault
    reason: str


class ErrorPolicy:
    """What happens to a bad sample: it is counted and skipped, or raised.

    ``skip`` is called for each SampleError and ``passed`` for each sample that got through a stage. Other exceptions
    are bugs, not bad samples; the policy never sees them. One instance serves one stream (it keeps counts).
    """

    def __init__(self, *, on_error: Literal["skip", "raise"] = "skip", max_consecutive: int = 100) -> None:
        if on_error not in ("skip", "raise"):
            raise ConfigError(f"on_error must be 'skip' or 'raise', got {on_error!r}")
        if max_consecutive < 1:
            raise ConfigError(f"max_consecutive must be at least 1, got {max_consecutive}")
        self.on_error = on_error
        self.max_consecutive = max_consecutive
        self.counts: Counter[tuple[str, str]] = Counter()  # (source, code) → samples skipped
        self._runs: dict[str, Counter[str]] = {}  # stage → codes of its current run of failures
        self._pending: list[SkipRecord] = []

    def skip(self, error: SampleError, *, stage: Stage, source: str = "") -> SkipRecord:
        """Count a bad sample. Raises the error itself under ``on_error="raise"``, TooManyErrors at the limit."""
        record = SkipRecord(key=error.key, source=source, stage=stage, code=error.code, reason=error.reason)
        self.counts[source, error.code] += 1
        self._pending.append(record)
        if self.on_error == "raise":
            raise error
        run = self._runs.setdefault(stage, Counter())
        run[error.code] += 1
        if run.total() >= self.max_consecutive:
            raise TooManyErrors(_describe(run, record)) from error
        return record

    def passed(self, stage: Stage) -> None:
        """A sample got through ``stage``: its run of failures is over."""
        self._runs.pop(stage, None)

    def take_records(self) -> list[SkipRecord]:
        """The records since the last call, those of a raised error too."""
        records, self._pending = self._pending, []
        return records


class Quarantine:
    """A JSON-lines file with one line per skipped sample; it is appended to, and each line is on disk at once."""

    def __init__(self, path: str | Path) -> None:
        """Raises ConfigError if the file cannot be written."""
        self.path = Path(path)
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            self._descriptor = os.open(self.path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
        except OSError as error:
            raise ConfigError(f"the quarantine file {path} cannot be written: {error.strerror}") from error

    def write(self, record: SkipRecord) -> None:
        """Append one line. It goes out in one call, so that several processes can share a file."""
        line = json.dumps(asdict(record), ensure_ascii=False) + "\n"
        # A name with bytes that are no UTF-8 holds lone surrogates; their escapes are legal JSON.
        os.write(self._descriptor, line.encode("utf-8", errors="backslashreplace"))

    def close(self) -> None:
        """Close the file; a second call does nothing."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1


def _describe(run: Counter[str], last: SkipRecord) -> str:
    code, count = run.most_common(1)[0]
    place = f" of {last.source}" if last.source else ""
    return (
        f"{run.total()} samples in a row failed in stage {last.stage!r}, most often with {code} ({count} times);"
        f" the last one was sample {last.key!r}{place}: {last.reason}. Mend the data or the settings (the quarantine"
        " file, if one is set, names each sample), or raise max_consecutive_errors"
    )
