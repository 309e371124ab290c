"""A job and the number of a task enter; the shards of that task are written, and what became of its rows leaves."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass
from itertools import chain, islice
from pathlib import Path
from typing import Any, NamedTuple

from packloom.datasets.convert.find import Found
from packloom.datasets.convert.media import MediaReader
from packloom.datasets.convert.media_table import MediaTable
from packloom.datasets.convert.plan import Plan
from packloom.datasets.convert.sample import build_sample, media_values
from packloom.datasets.convert.source import SourceRow, printable
from packloom.datasets.manifest import ShardEntry
from packloom.datasets.parts import encode_parts
from packloom.datasets.writer import write_piece
from packloom.errors import SampleError
from packloom.types import RawSample

#: Raises SampleError for a sample that cannot be trained on; gets it as a reader of shards would.
Check = Callable[[RawSample], object]

#: Sorted by name, the shards of a folder come in the order of tasks, and within a task in that of writing.
PIECE_NAME = "shard-{:06d}-{{:04d}}.tar"
#: Rows whose media are looked up together where they lie in a table of their own.
_JOINED_ROWS = 16
#: A lot has as many samples.
_LOT_ROWS, _LOT_BYTES = 32, 4 << 20


@dataclass(frozen=True, kw_only=True)
class Job:
    """All that a task needs; it pickles."""

    found: Found
    plan: Plan
    target: Path
    samples_per_shard: int
    max_shard_bytes: int
    check: Check | None


@dataclass(frozen=True, kw_only=True)
class BadRow:
    """One row that became no sample."""

    row: int
    key: str
    code: str
    reason: str


@dataclass(frozen=True, kw_only=True)
class TaskResult:
    """What a task wrote: all its rows are samples or bad."""

    task: int
    num_rows: int
    num_samples: int
    shards: tuple[ShardEntry, ...]
    bad: tuple[BadRow, ...]

    def to_dict(self) -> dict[str, Any]:
        """Plain data for JSON."""
        return asdict(self)

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> TaskResult:
        """Raises KeyError, TypeError for what ``to_dict`` did not make."""
        shards = tuple(ShardEntry(**item) for item in data["shards"])
        return cls(**{**data, "shards": shards, "bad": tuple(BadRow(**item) for item in data["bad"])})


class _Made(NamedTuple):
    """What became of a row: the parts of a sample, or why it is none."""

    number: int
    key: str
    parts: Mapping[str, bytes] | SampleError


def run_task(job: Job, task: int) -> TaskResult:
    """Write the shards of one task; doing it again, anywhere, writes the same bytes.

    Raises ShardError where the source cannot be read, OSError where the target cannot be written.
    """
    bad: list[BadRow] = []
    start, stop = job.plan.span(task)
    num_shards = -(-(stop - start) // job.samples_per_shard)
    shards = write_piece(
        _samples(job, task, bad),
        job.target,
        name=PIECE_NAME.format(task),
        samples_per_shard=-(-(stop - start) // num_shards),  # evenly, rather than with a small one at the end
        max_shard_bytes=job.max_shard_bytes,
    )
    num_samples = sum(entry.num_samples for entry in shards)
    return TaskResult(task=task, num_rows=stop - start, num_samples=num_samples, shards=tuple(shards), bad=tuple(bad))


def _samples(job: Job, task: int, bad: list[BadRow]) -> Iterator[tuple[str, Mapping[str, bytes]]]:
    for lot in _lots(_made(job, task)):
        for place, made in enumerate(lot):
            lot[place] = _checked(job, made)
        while lot:  # let go of each sample once it is used
            made = lot.popleft()
            if isinstance(made.parts, SampleError):
                bad.append(_bad_row(made, made.parts))
            else:
                yield made.key, made.parts


def _made(job: Job, task: int) -> Iterator[_Made]:
    """The rows of a task as samples, with their media."""
    table = MediaTable(job.found.media_table) if job.found.media_table is not None else None
    media = MediaReader(root=job.found.media_root, table=table)
    numbers = job.plan.row_numbers(task)
    names = job.found.columns.read if job.found.columns is not None else []
    rows = zip(numbers.tolist(), job.found.source.rows(numbers, names), strict=True)
    for group in _grouped(rows, _JOINED_ROWS if table is not None else 1):
        values = (media_values(row, job.found.columns) for _, row in group if isinstance(row, SourceRow))
        media.expect(chain.from_iterable(values))
        while group:  # let go of each row once it is used
            number, row = group.popleft()
            key = row.key if isinstance(row, SourceRow) and row.key is not None else f"{number:09d}"
            yield _Made(number, key, _parts(job, row, media, key))


def _parts(job: Job, row: SourceRow | SampleError, media: MediaReader, key: str) -> dict[str, bytes] | SampleError:
    if isinstance(row, SampleError):
        return row
    try:
        sample = build_sample(row, job.found.columns, media, key=key)
        return encode_parts(sample, number=row.number)[1]
    except SampleError as error:
        return error


def _checked(job: Job, made: _Made) -> _Made:
    if job.check is None or isinstance(made.parts, SampleError):
        return made
    try:
        job.check({"__key__": made.key, **made.parts})
    except SampleError as error:
        return made._replace(parts=error)
    return made


def _bad_row(made: _Made, error: SampleError) -> BadRow:
    reason = f"{error.reason} ({error.hint})" if error.hint else error.reason
    key = error.key or made.key
    return BadRow(row=made.number, key=printable(key), code=error.code, reason=printable(reason))


def _lots(items: Iterator[_Made]) -> Iterator[deque[_Made]]:
    """What a step does with many samples at a stretch takes half the time: its code stays in the processor's cache."""
    lot: deque[_Made] = deque()
    size = 0
    for made in items:
        lot.append(made)
        size += 0 if isinstance(made.parts, SampleError) else sum(map(len, made.parts.values()))
        if size >= _LOT_BYTES or len(lot) == _LOT_ROWS:
            del made
            yield lot
            lot, size = deque(), 0
    yield lot


def _grouped(
    rows: Iterator[tuple[int, SourceRow | SampleError]], size: int
) -> Iterator[deque[tuple[int, SourceRow | SampleError]]]:
    while group := deque(islice(rows, size)):
        yield group
