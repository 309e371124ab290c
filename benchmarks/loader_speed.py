"""Shards of real JPEGs go in; what a sample costs packloom, webdataset and megatron-energon comes out, with ratios.

``make bench-loader`` (or ``python benchmarks/loader_speed.py`` where megatron-energon is installed; without it the
other two are compared). All read the same shards from a warm page cache and give the same: the bytes of each sample, or
its photograph decoded by Pillow to uint8. Shuffled means a reach of 1,000 samples for all: packloom's window, the
shuffle buffer of the two others, beside shuffled shards (webdataset), slices (Energon) and blocks (packloom). The
loaders take turns, one at a time, and each figure is the median of its turns. CPU time is that of the main process and
the worker together, which other processes disturb least. Measured is from the first sample on: neither the start of
workers nor the filling of buffers counts.

packloom comes twice: ``dataset`` is ``open_dataset`` read in the order of an epoch, which gives what webdataset gives;
``loader`` is ``build_loader``, which keeps lanes, error policy and a state after each sample, as Energon's loader does.
Both compare every part with its checksum; the others do not.
"""

from __future__ import annotations

import argparse
import itertools
import multiprocessing
import statistics
import tempfile
import time
import warnings
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from jpeg_shards import write_jpeg_shards
from loader_contenders import Task, contenders, energon_peer

#: (packloom's way, peer, whether JPEGs are decoded, least ratio or None). Energon's loader keeps a state in training,
#: thus shuffled; its loader for validation, which reads in order, does not.
GOALS = (
    ("packloom dataset", "webdataset", False, 1.0),
    ("packloom dataset", "webdataset", True, 1.0),
    ("packloom dataset", "energon", False, 2.0),
    ("packloom dataset", "energon", True, 1.0),
    ("packloom loader", "webdataset", False, None),
    ("packloom loader", "energon", False, 2.0),
    ("packloom loader", "energon", True, 1.0),
)


@dataclass(frozen=True, kw_only=True)
class Rate:
    """What a loader needs per sample, in µs."""

    wall: float
    cpu: float  # of this process and the loader's worker


class Stream:
    """A loader that has given its first sample, with the process of its worker."""

    def __init__(self, loader: Iterable[Any]) -> None:
        before = set(multiprocessing.active_children())
        self._samples = iter(loader)
        next(self._samples)
        self._workers = [worker.pid for worker in set(multiprocessing.active_children()) - before]

    def read(self, count: int) -> Rate:
        """What the next samples take."""
        cpu, wall = self._cpu_seconds(), time.perf_counter()
        num_read = sum(1 for _ in itertools.islice(self._samples, count))
        wall, cpu = time.perf_counter() - wall, self._cpu_seconds() - cpu
        if num_read != count:
            raise RuntimeError("a loader came to its end: write more samples, or measure fewer")
        return Rate(wall=1e6 * wall / count, cpu=1e6 * cpu / count)

    def _cpu_seconds(self) -> float:
        """So far; workers are seen on Linux only, and in steps of some milliseconds."""
        files = [file for pid in self._workers for file in Path(f"/proc/{pid}/task").glob("*/schedstat")]
        return time.process_time() + sum(int(file.read_text().split()[0]) for file in files) / 1e9


def compare(task: Task, *, count: int, rounds: int) -> dict[str, Rate]:
    """Name → medians. The loaders take turns, one at a time."""
    rates: dict[str, list[Rate]] = {name: [] for name in contenders()}
    for _ in range(rounds):
        for name, make in contenders().items():
            rates[name].append(Stream(make(task)).read(count))
    return {
        name: Rate(wall=statistics.median(rate.wall for rate in each), cpu=statistics.median(rate.cpu for rate in each))
        for name, each in rates.items()
    }


def warm(folder: Path) -> None:
    """Read every shard once, so that no loader pays for the disk."""
    for shard in folder.glob("*.tar"):
        shard.read_bytes()


def report(results: Mapping[Task, Mapping[str, Rate]]) -> Table:
    """One line per task."""
    table = Table(title="µs per sample: CPU / wall", title_justify="left")
    names = list(next(iter(results.values())))
    for heading in ("task", *names):
        table.add_column(heading, justify="left" if heading == "task" else "right")
    for task, rates in results.items():
        table.add_row(str(task), *(f"{rates[name].cpu:,.0f} / {rates[name].wall:,.0f}" for name in names))
    return table


def judge(results: Mapping[Task, Mapping[str, Rate]]) -> Iterator[str]:
    """A line per goal: the least ratio of speeds over all tasks that it is about."""
    for name, peer, decodes, goal in GOALS:
        only_shuffled = name == "packloom loader"
        found = [
            rates
            for task, rates in results.items()
            if task.decodes == decodes and peer in rates and (task.shuffle or not only_shuffled)
        ]
        if found:
            cpu = min(rates[peer].cpu / rates[name].cpu for rates in found)
            wall = min(rates[peer].wall / rates[name].wall for rates in found)
            wanted = f"goal: {goal:.1f} or more" if goal else "no goal: webdataset keeps no state"
            kind = f"{'JPEG decoded' if decodes else 'raw bytes'}{', shuffled' if only_shuffled else ''}"
            yield f"{name} over {peer}, {kind}: {cpu:.2f} by CPU time, {wall:.2f} by wall time, at least ({wanted})"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--samples", type=int, default=4_000, help="of the dataset (default: %(default)s)")
    parser.add_argument("--window", type=int, default=1_000, help="of the shuffling (default: %(default)s)")
    parser.add_argument("--raw", type=int, default=500, help="raw samples per turn (default: %(default)s)")
    parser.add_argument("--decode", type=int, default=100, help="photographs per turn (default: %(default)s)")
    parser.add_argument("--rounds", type=int, default=3, help="turns of each loader (default: %(default)s)")
    parser.add_argument("--workers", type=int, nargs="+", default=[0, 1], help="(default: 0 1)")
    options = parser.parse_args()
    warnings.filterwarnings("ignore", module="webdataset")
    console = Console(width=140)
    with tempfile.TemporaryDirectory(prefix="packloom-bench-") as name:
        folder = Path(name)
        num_bytes = write_jpeg_shards(folder, options.samples)
        console.print(f"{options.samples} samples, {num_bytes / 2**20:.0f} MiB of JPEGs")
        if energon_peer:
            energon_peer.prepare(folder)
        else:
            console.print("megatron-energon is not installed here: it is left out (`make bench-loader` installs it)")
        warm(folder)
        results = {}
        for decodes, shuffle, num_workers in itertools.product((False, True), (True, False), options.workers):
            task = Task(folder=folder, shuffle=shuffle, window=options.window, decodes=decodes, num_workers=num_workers)
            count = options.decode if decodes else options.raw
            results[task] = compare(task, count=count, rounds=options.rounds)
    console.print(report(results))
    for line in judge(results):
        console.print(line, highlight=False)


if __name__ == "__main__":
    main()
