"""A source and settings enter; which rows each task writes leaves, as a pure function of them."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from packloom.datasets.convert.columns import ColumnMap
from packloom.datasets.convert.find import Found
from packloom.datasets.convert.settings import ConvertConfig
from packloom.datasets.permutation import make_permutation

PLAN_VERSION = 1


@dataclass(frozen=True, kw_only=True)
class Plan:
    """The tasks of a conversion. A task writes its own shards, so that who runs it, and when, changes no byte."""

    num_rows: int
    ends: tuple[int, ...] | None  # where each task ends, in rows; None: every ``task_rows``
    task_rows: int
    shuffle_key: tuple[str | int, ...] | None
    facts: dict[str, Any]  # what the plan follows from, for comparing two plans

    @property
    def num_tasks(self) -> int:
        return -(-self.num_rows // self.task_rows) if self.ends is None else len(self.ends)

    def span(self, task: int) -> tuple[int, int]:
        """The places [start, stop) of a task."""
        if self.ends is None:
            return task * self.task_rows, min(self.num_rows, (task + 1) * self.task_rows)
        return self.ends[task - 1] if task else 0, self.ends[task]

    def row_numbers(self, task: int) -> np.ndarray:
        """[K] int64, the rows of a task in writing order."""
        places = np.arange(*self.span(task), dtype=np.int64)
        if self.shuffle_key is None:
            return places
        return make_permutation(self.num_rows, *self.shuffle_key).at_many(places)

    def to_json(self) -> bytes:
        """Half a surrogate pair in a name is escaped, so that reading gives back what was written."""
        return json.dumps(self.facts, indent=1, ensure_ascii=False).encode("utf-8", "backslashreplace") + b"\n"


def make_plan(found: Found, config: ConvertConfig, *, check_name: str | None) -> Plan:
    """Cut the rows into tasks of about ``samples_per_shard`` rows.

    Rows that are cheap to read only together (a row group) stay in one task, unless all are shuffled. A task starts a
    new shard wherever its samples reach one of the limits.
    """
    source = found.source
    segments = None if config.shuffle else source.segments
    facts = {
        "version": PLAN_VERSION,
        "kind": source.kind,
        "identity": source.identity,
        "media_table": found.media_table.identity if found.media_table else None,
        "num_rows": source.num_rows,
        "settings": config.shaping,
        "columns": None if found.columns is None else _plain(found.columns),
        "check": check_name,
    }
    return Plan(
        num_rows=source.num_rows,
        ends=None if segments is None else _cut(segments, config.samples_per_shard),
        task_rows=config.samples_per_shard,
        shuffle_key=("convert", config.seed, source.identity) if config.shuffle else None,
        facts=facts,
    )


def differences(old: dict[str, Any], new: dict[str, Any], path: str = "") -> list[str]:
    """``name: old → new`` for each fact in which two plans differ."""
    found = []
    for name in dict.fromkeys([*old, *new]):
        mine, other = new.get(name), old.get(name)
        if isinstance(mine, dict) and isinstance(other, dict):
            found += differences(other, mine, f"{path}{name}.")
        elif mine != other:
            found.append(f"{path}{name}: {other!r:.60} → {mine!r:.60}")
    return found


def _plain(columns: ColumnMap) -> dict[str, Any]:
    """What of the mapping decides the bytes, as JSON gives it back."""
    used = {"fields": columns.fields, "media": columns.media, "kept": columns.kept}
    plain: dict[str, Any] = json.loads(json.dumps(used))
    return plain


def _cut(segments: Sequence[int], task_rows: int) -> tuple[int, ...]:
    ends, start, stop = [], 0, 0
    for length in segments:
        stop += length
        if stop - start >= task_rows:
            ends.append(stop)
            start = stop
    return tuple([*ends, stop] if stop > start else ends)
