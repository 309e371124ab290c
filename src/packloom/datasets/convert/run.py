"""A source and a target folder enter; shards, their index, a manifest and a quarantine file stand in it at the end."""

from __future__ import annotations

import os
import sys
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from tqdm import tqdm

from packloom.datasets.convert.find import Found, find_in_place, needs_spawn
from packloom.datasets.convert.plan import Plan, make_plan
from packloom.datasets.convert.progress import Journal
from packloom.datasets.convert.runners import InProcess, LocalProcesses, Runner
from packloom.datasets.convert.settings import ConvertConfig
from packloom.datasets.convert.target import Target, verify_shard
from packloom.datasets.convert.task import Check, Job, TaskResult, run_task
from packloom.datasets.manifest import Manifest, ShardEntry, write_manifest
from packloom.errors import ConfigError, ShardError, TooManyErrors

#: After so many rows without a single good one, the settings are wrong rather than the rows.
_HOPELESS_ROWS = 1000


@dataclass(frozen=True, kw_only=True)
class RunSettings:
    """How a conversion runs; none of it changes what is written."""

    num_workers: int = 0  # spawned processes; 0: this one (and one beside it where Lance takes part)
    runner: Runner | None = None  # another place for all work, e.g. a RayProcesses; whoever made it closes it
    progress: bool = False  # a bar on stderr, where that is a terminal
    overwrite: bool = False  # remove an earlier conversion of other settings first
    dry_run: bool = False  # stop once the source is found and its columns are mapped


@dataclass(frozen=True, kw_only=True)
class ConvertReport:
    """Rows in = samples out + bad rows."""

    num_rows: int
    num_samples: int
    num_bad: int
    codes: Counter[str] = field(default_factory=Counter)  # of bad rows
    shards: Sequence[ShardEntry] = ()
    fingerprint: str = ""  # of the dataset that was written
    quarantine: Path | None = None  # names each bad row, if there is any
    num_resumed: int = 0  # rows that an earlier run had done
    was_finished: bool = False  # an earlier run had done all; its shards were verified


def convert(
    source: str | os.PathLike[str],
    target: str | os.PathLike[str],
    config: ConvertConfig | None = None,
    *,
    settings: RunSettings | None = None,
    check: Check | None = None,
    announce: Callable[[Found, Plan], None] | None = None,
) -> ConvertReport:
    """Write the rows of ``source`` as shards into the folder ``target``, with index and manifest.

    ``source``: a Lance dataset, parquet, a Hugging Face dataset (a folder, or a name with ``kind="hf"``), JSON or
    JSONL, a folder of images with captions, or tar shards. ``check`` is a module-level function that raises SampleError
    for a sample that would be of no use (``packloom.task_encoders.cook`` is one); ``announce`` is told what was found
    before anything is written.

    Rows that cannot become samples go into ``quarantine.jsonl``. Shards are synced and then renamed; a run that was
    killed goes on when it is called again, and the result is byte for byte that of an undisturbed run. On a target that
    is finished, the shards are compared with their digests; only what is missing beside them is written.

    Raises ShardError for a source that cannot be read, a target that holds something else or fails its verification;
    ConfigError; TooManyErrors if no row is any good; WorkerError if a worker died; OSError for a full disk.
    """
    settings = settings or RunSettings()
    path, config = _absolute(os.fspath(source), config or ConvertConfig())
    if settings.num_workers < 0:
        raise ConfigError(f"num_workers must not be negative, got {settings.num_workers}")
    must_spawn = needs_spawn(path, config)
    with Target(target) as place, closing(_local_runner(settings.num_workers, must_spawn)) as local:
        place.prepare(path, overwrite=settings.overwrite)
        runner = settings.runner or local
        found = next(runner.run(find_in_place, [(path, config, place.scratch.resolve())]))
        plan = make_plan(found, config, check_name=_name(check))
        if announce is not None:
            announce(found, plan)
        if settings.dry_run:
            return ConvertReport(num_rows=plan.num_rows, num_samples=0, num_bad=0)
        place.agree(plan, overwrite=settings.overwrite)
        job = Job(
            found=found,
            plan=plan,
            target=place.folder.resolve(),
            samples_per_shard=config.samples_per_shard,
            max_shard_bytes=config.max_shard_bytes,
            check=check,
        )
        with closing(Journal(place.state, place.folder)) as journal:
            return _Conversion(job, place, journal, runner, settings.progress).run()


class _Conversion:
    """One run over the tasks that are not done yet."""

    def __init__(self, job: Job, place: Target, journal: Journal, runner: Runner, progress: bool) -> None:
        self._job = job
        self._place = place
        self._journal = journal
        self._runner = runner
        self._progress = progress

    def run(self) -> ConvertReport:
        plan, done = self._job.plan, self._journal.done
        missing = [task for task in range(plan.num_tasks) if task not in done]
        if not missing and self._place.is_finished(self._shards()):
            self._verify()
            self._journal.mend(self._place.quarantine)
            return self._report(num_resumed=plan.num_rows, was_finished=True)
        resumed = sum(task.num_rows for task in done.values())
        self._place.begin()
        with self._bar(total=plan.num_rows, initial=resumed, unit="row", desc="convert") as bar:
            for result in self._runner.run(_run, ((self._job, task) for task in missing)):
                self._journal.add(result)
                bar.update(result.num_rows)
                self._check_hope()
        self._finish()
        return self._report(num_resumed=resumed)

    def _finish(self) -> None:
        self._check_counts()
        self._journal.finish(self._place.quarantine)
        shards = self._shards()
        if not shards:
            raise TooManyErrors(self._hopeless())
        write_manifest(str(self._place.index_root), shards)

    def _verify(self) -> None:
        shards = self._shards()
        with self._bar(total=len(shards), unit="shard", desc="verify") as bar:
            damaged = []
            for name in self._runner.run(verify_shard, ((self._place.folder.resolve(), entry) for entry in shards)):
                damaged += [name] if name is not None else []
                bar.update()
        if damaged:
            raise ShardError(
                f"{len(damaged)} of {len(shards)} shards in {self._place.folder} are not as they were written, e.g."
                f" {min(damaged)}: remove these files and run the conversion again, which writes them anew"
            )

    def _check_counts(self) -> None:
        done = self._journal.done
        rows = sum(task.num_rows for task in done.values())
        out = sum(task.num_samples + task.num_bad for task in done.values())
        if not rows == out == self._job.plan.num_rows:
            raise ShardError(
                f"of {self._job.plan.num_rows} rows, {rows} were read, but {out} became samples or were quarantined:"
                " this is a bug of packloom, please report it"
            )

    def _check_hope(self) -> None:
        done = self._journal.done.values()
        if self._journal.codes.total() >= _HOPELESS_ROWS and not any(task.num_samples for task in done):
            raise TooManyErrors(self._hopeless())

    def _hopeless(self) -> str:
        code, count = self._journal.codes.most_common(1)[0]
        example = next(bad for result in self._journal.results() for bad in result.bad if bad.code == code)
        return (
            f"none of {self._journal.codes.total()} rows became a sample, most often by {code} ({count} times), e.g."
            f" row {example.row}: {example.reason}. Check the mapping of the columns, then run again with --overwrite"
        )

    def _report(self, *, num_resumed: int, was_finished: bool = False) -> ConvertReport:
        done, shards = self._journal.done.values(), self._shards()
        return ConvertReport(
            num_rows=self._job.plan.num_rows,
            num_samples=sum(task.num_samples for task in done),
            num_bad=sum(task.num_bad for task in done),
            codes=self._journal.codes,
            shards=shards,
            fingerprint=Manifest(shards=tuple(shards)).fingerprint,
            quarantine=self._place.quarantine if self._journal.codes else None,
            num_resumed=num_resumed,
            was_finished=was_finished,
        )

    def _shards(self) -> list[ShardEntry]:
        return [entry for task in sorted(self._journal.done) for entry in self._journal.done[task].shards]

    def _bar(self, **options: Any) -> tqdm[Any]:
        return tqdm(**options, disable=None if self._progress else True, file=sys.stderr, smoothing=0.1)


def _local_runner(num_workers: int, must_spawn: bool) -> Runner:
    return LocalProcesses(max(1, num_workers)) if num_workers or must_spawn else InProcess()


def _absolute(path: str, config: ConvertConfig) -> tuple[str, ConvertConfig]:
    """Paths that hold in any process of this machine, whatever folder it works in; names and urls stay as they are."""

    def absolute(place: str) -> str:
        is_name = config.kind == "hf" and not os.path.exists(place)
        return place if "://" in place or is_name else os.path.abspath(place)

    root, table = config.media_root, config.media_table
    config = replace(config, media_root=root and absolute(root), media_table=table and absolute(table))
    return absolute(path), config


def _run(call: tuple[Job, int]) -> TaskResult:
    job, task = call
    return run_task(job, task)


def _name(check: Check | None) -> str | None:
    return None if check is None else f"{check.__module__}.{getattr(check, '__qualname__', type(check).__qualname__)}"
