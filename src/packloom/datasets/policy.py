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
Stage = Literal["read", "encode", "pack", "media", "collate"]


@dataclass(frozen=True, kw_only=True, slots=True)
class SkipRecord:
    """One skipped sample; plain data. One that is bad in every epoch gives one record in each."""

    key: str
    source: str  # the shard, or "" where it is not known
    stage: str
    code: str  # short stable name of the kind of fault
    reason: str
    epoch: int = 0
    offset: int | None = None  # the byte in the shard where what failed stands, where that is known
    dataset: str = ""  # the leaf of the blend that it was drawn from


class ErrorPolicy:
    """What happens to a bad sample: it is counted and skipped, or raised.

    ``skip`` is called for each SampleError and ``passed`` for each sample that got through a stage. Other exceptions
    are bugs, not bad samples; the policy never sees them. One instance serves one stream (it keeps counts).
    """

    def __init__(
        self,
        *,
        on_error: Literal["skip", "raise"] = "skip",
        max_consecutive: int = 100,
        max_fraction: float | None = None,
        min_samples: int = 1000,
    ) -> None:
        """``max_consecutive`` failures of a stage in a row are too many, and so is a share of lost samples above
        ``max_fraction`` (None: no limit), counted in the stages that have seen ``min_samples`` or more."""
        if on_error not in ("skip", "raise"):
            raise ConfigError(f"on_error must be 'skip' or 'raise', got {on_error!r}")
        if max_consecutive < 1:
            raise ConfigError(f"max_consecutive must be at least 1, got {max_consecutive}")
        if max_fraction is not None and not 0 <= max_fraction <= 1:
            raise ConfigError(f"max_fraction must be in 0..1 or None, got {max_fraction}")
        self.on_error = on_error
        self.max_consecutive = max_consecutive
        self.max_fraction = max_fraction
        self.min_samples = min_samples
        self.counts: Counter[tuple[str, str]] = Counter()  # (source, code) → samples skipped
        self._passed: Counter[str] = Counter()  # stage → samples
        self._failed: Counter[str] = Counter()
        self._runs: dict[str, Counter[str]] = {}  # stage → codes of its current run of failures
        self._examples: dict[str, SkipRecord] = {}  # code → the first sample that failed with it
        self._pending: list[SkipRecord] = []

    def skip(
        self, error: SampleError, *, stage: Stage, source: str = "", epoch: int = 0, dataset: str = ""
    ) -> SkipRecord:
        """Count a bad sample. Raises the error itself under ``on_error="raise"``, TooManyErrors at the limit."""
        record = SkipRecord(
            key=error.key,
            source=source,
            stage=stage,
            code=error.code,
            reason=error.reason,
            epoch=epoch,
            offset=error.offset,
            dataset=dataset,
        )
        self.counts[source, error.code] += 1
        self._failed[stage] += 1
        self._examples.setdefault(error.code, record)
        self._pending.append(record)
        if self.on_error == "raise":
            raise error
        run = self._runs.setdefault(stage, Counter())
        run[error.code] += 1
        if run.total() >= self.max_consecutive:
            raise TooManyErrors(_describe(run, record)) from error
        if self.max_fraction is not None and self.fraction_lost > self.max_fraction:
            raise TooManyErrors(self._describe_fraction(self.max_fraction)) from error
        return record

    def passed(self, stage: Stage, count: int = 1) -> None:
        """``count`` samples got through ``stage``: its run of failures is over."""
        if count:
            self._passed[stage] += count
            self._runs.pop(stage, None)

    @property
    def fraction_lost(self) -> float:
        """The share of samples that some stage lost: stages come one after the other, so what they keep multiplies."""
        kept = 1.0
        for stage, failed in self._failed.items():
            seen = failed + self._passed[stage]
            kept *= 1.0 if seen < self.min_samples else self._passed[stage] / seen
        return 1.0 - kept

    def take_records(self) -> list[SkipRecord]:
        """The records since the last call, those of a raised error too."""
        records, self._pending = self._pending, []
        return records

    def _describe_fraction(self, limit: float) -> str:
        codes = Counter[str]()
        for (_, code), number in self.counts.items():
            codes[code] += number
        code, count = codes.most_common(1)[0]
        first = self._examples[code]
        place = f" of {first.source}" if first.source else ""
        stages = ", ".join(
            f"{failed} of {failed + self._passed[stage]} in stage {stage!r}" for stage, failed in self._failed.items()
        )
        return (
            f"{self.fraction_lost:.1%} of the samples are lost ({stages}), more than max_error_fraction {limit:.1%}:"
            f" most often with {code} ({count} of {codes.total()} times), first at sample {first.key!r}{place}:"
            f" {first.reason}."
            " Mend the data or the settings (the quarantine file, if one is set, names each sample), or raise"
            " max_error_fraction"
        )


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

    def __reduce__(self) -> tuple[object, ...]:
        return Quarantine, (self.path,)

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
