"""The packs of each planned epoch go into a file; out of it come a header to compare with, and one epoch at a time."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from packloom.errors import PlanError
from packloom.loader.plan_parquet import Columns, ParquetTable, read_parquet, write_parquet

PLAN_VERSION = 1
#: Rows of a row group.
_GROUP_ROWS = 1 << 24
#: Epochs that are kept in memory: one may be ending while the next begins.
_KEPT = 2
_HEADER_FIELDS = (
    "version",
    "dataset",
    "encoder",
    "aux",
    "settings",
    "balance_ranks",
    "num_samples",
    "left_out",
    "epochs",
    "digest",
)


@dataclass(frozen=True, kw_only=True, eq=False)
class EpochPacks:
    """One row per sample in a pack (K rows), pack after pack; ``bounds[p]:bounds[p + 1]`` are those of pack p."""

    samples: NDArray[np.integer]  # [K] numbers in the dataset
    rounds: NDArray[np.integer]  # [K] the epoch of the leaf that it belongs to; outside of blends that of the plan
    tokens: NDArray[np.integer]  # [K] before alignment
    patches: NDArray[np.integer]  # [K]
    bounds: NDArray[np.int64]  # [P + 1]

    @property
    def num_packs(self) -> int:
        return len(self.bounds) - 1


class PackPlan:
    """A plan that was opened. Pickles as a path: each process reads the epochs that it needs."""

    def __init__(self, path: Path, header: Mapping[str, Any]) -> None:
        self.path = path
        self.header = header
        #: Packs of each planned epoch.
        self.num_packs: tuple[int, ...] = tuple(epoch["num_packs"] for epoch in header["epochs"])
        #: Samples in the packs of each.
        self.num_rows: tuple[int, ...] = tuple(epoch["num_rows"] for epoch in header["epochs"])
        self._epochs: dict[int, EpochPacks] = {}

    def __reduce__(self) -> tuple[object, ...]:
        return PackPlan, (self.path, self.header)

    @property
    def num_epochs(self) -> int:
        return len(self.num_packs)

    def epoch(self, number: int) -> EpochPacks:
        """A planned epoch. Raises PlanError where the file has changed since it was opened, or is damaged."""
        if number not in self._epochs:
            while len(self._epochs) >= _KEPT:
                del self._epochs[next(iter(self._epochs))]
            self._epochs[number] = self._read(number)
        return self._epochs[number]

    def _read(self, number: int) -> EpochPacks:
        stated = self.header["epochs"]
        first = sum(epoch["num_groups"] for epoch in stated[:number])
        table = ParquetTable(self.path, self.header, first)
        groups = [table.read(first + group) for group in range(stated[number]["num_groups"])]
        columns = {name: np.concatenate([group[name] for group in groups]) for name in groups[0]}
        if _digest_of(columns) != stated[number]["digest"]:
            raise PlanError(f"{self.path} was changed since it was written (epoch {number}): make it again")
        packs = columns["pack"]
        kept = packs >= 0
        sizes = np.bincount(packs[kept], minlength=stated[number]["num_packs"])
        return EpochPacks(
            samples=columns["sample"][kept],
            rounds=columns["round"][kept],
            tokens=columns["tokens"][kept],
            patches=columns["patches"][kept],
            bounds=np.concatenate([[0], np.cumsum(sizes)]),
        )


@dataclass(frozen=True, kw_only=True)
class EpochTable:
    """What is written of an epoch: a row per draw (K rows), in any order. ``pack`` is -1 for one that is left out."""

    sample: NDArray[np.integer]
    round: NDArray[np.integer]
    pack: NDArray[np.integer]
    tokens: NDArray[np.integer]
    patches: NDArray[np.integer]

    def columns(self) -> dict[str, NDArray[np.integer]]:
        """Pack after pack, each by sample number; what is left out stands last."""
        order = np.lexsort((self.round, self.sample, np.where(self.pack < 0, np.iinfo(np.int64).max, self.pack)))
        wide = np.int64 if self.sample.max(initial=0) > np.iinfo(np.int32).max else np.int32
        names = {"sample": wide, "round": np.int32, "pack": np.int32, "tokens": np.int32, "patches": np.int32}
        return {name: getattr(self, name)[order].astype(kind) for name, kind in names.items()}


def write_plan(path: Path, header: Mapping[str, Any], epochs: Iterator[EpochTable]) -> PackPlan:
    """Write a plan, epoch by epoch; ``header`` lacks what is counted here."""
    told: list[dict[str, Any]] = []
    complete: dict[str, Any] = {"version": PLAN_VERSION, **header, "epochs": told, "digest": ""}

    def groups() -> Iterator[Columns]:
        for table in epochs:
            columns = table.columns()
            num_rows, total = int((columns["pack"] >= 0).sum()), columns["pack"].size
            starts = range(0, total, _GROUP_ROWS)
            told.append(
                {
                    "num_packs": int(columns["pack"].max(initial=-1)) + 1,
                    "num_rows": num_rows,
                    "num_groups": len(starts),
                    "last_round": int(columns["round"].max(initial=0)),
                    "digest": _digest_of(columns),
                }
            )
            for start in starts:
                yield {name: values[start : start + _GROUP_ROWS] for name, values in columns.items()}
        complete["digest"] = _digest_of_header(complete)

    write_parquet(path, complete, groups())
    return open_plan_file(path)


def open_plan_file(path: str | Path) -> PackPlan:
    """The plan of a file, by its header. Raises PlanError for what is none, or one of another version."""
    header = read_parquet(Path(path)).header
    missing = [name for name in _HEADER_FIELDS if name not in header]
    if missing or header["version"] != PLAN_VERSION:
        got = f"its header lacks {', '.join(missing)}" if missing else f"it has version {header['version']}"
        raise PlanError(f"{path} is no pack plan of version {PLAN_VERSION}: {got}. Make it again with `packloom plan`")
    if _digest_of_header(header) != header["digest"]:
        raise PlanError(f"the header of {path} was changed since it was written: make it again")
    return PackPlan(Path(path), header)


def _digest_of(columns: Columns) -> str:
    digest = hashlib.sha256()
    for name in sorted(columns):
        values = np.ascontiguousarray(columns[name])
        digest.update(f"{name} {values.dtype.str} {values.size}".encode())
        digest.update(values.tobytes())
    return digest.hexdigest()[:32]


def _digest_of_header(header: Mapping[str, Any]) -> str:
    text = json.dumps({name: value for name, value in header.items() if name != "digest"}, sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:32]
