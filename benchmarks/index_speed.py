"""Shards of real JPEGs go in; how fast ``packloom index`` reads them comes out, beside a plain listing and checksum.

``python benchmarks/index_speed.py``: the index holds the SHA-256 of each shard and the CRC-32 of each part, so it reads
every byte; a listing of names (Python's tarfile) does not. The same bytes through SHA-256 alone is the least that it
can take. From a warm page cache; each figure is the best of the repeats, which take turns. CPU time is that of all
processes, their start included.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import tarfile
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from rich.console import Console
from rich.table import Table

from jpeg_shards import write_jpeg_shards
from packloom.datasets import build_index

#: Over listing the names and SHA-256 together. Beside these, each part is checked for its CRC-32 and image size.
MAX_RATIO = 3.0


def list_names(folder: Path) -> None:
    """Every header, no payload."""
    for shard in folder.glob("*.tar"):
        with tarfile.open(shard) as tar:
            tar.getnames()


def digest(folder: Path) -> None:
    """Every byte, nothing else."""
    for shard in folder.glob("*.tar"):
        with shard.open("rb") as file:
            sha256 = hashlib.sha256()
            while block := file.read(1 << 20):
                sha256.update(block)


def index(num_workers: int) -> Callable[[Path], None]:
    """``packloom index --rebuild --workers N``."""

    def run(folder: Path) -> None:
        build_index(folder, num_workers=num_workers, rebuild=True, progress=False)

    return run


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--samples", type=int, default=6_000, help="of the dataset (default: %(default)s)")
    parser.add_argument("--repeats", type=int, default=3, help="(default: %(default)s)")
    parser.add_argument("--workers", type=int, default=2, help="beside one process (default: %(default)s)")
    options = parser.parse_args()
    ways: dict[str, Callable[[Path], None]] = {
        "names listed by tarfile (no payload)": list_names,
        "SHA-256 of every shard": digest,
        "packloom index, 1 process": index(0),
    }
    if options.workers > 1:
        ways[f"packloom index, {options.workers} processes"] = index(options.workers)
    seconds: dict[str, list[tuple[float, float]]] = {name: [] for name in ways}
    with tempfile.TemporaryDirectory(prefix="packloom-bench-") as name:
        folder = Path(name)
        write_jpeg_shards(folder, options.samples)
        size = sum(shard.stat().st_size for shard in folder.glob("*.tar"))
        for _ in range(options.repeats):
            for way, run in ways.items():
                wall, cpu = time.perf_counter(), cpu_seconds()
                run(folder)
                seconds[way].append((time.perf_counter() - wall, cpu_seconds() - cpu))
    best = {way: tuple(map(min, zip(*times, strict=True))) for way, times in seconds.items()}
    table = Table(title=f"{options.samples:,} samples, {size / 1e6:.0f} MB", title_justify="left")
    for heading in ("way", "MB/s", "samples/s", "MB per CPU second"):
        table.add_column(heading, justify="left" if heading == "way" else "right")
    for way, (wall, cpu) in best.items():
        table.add_row(way, f"{size / wall / 1e6:,.0f}", f"{options.samples / wall:,.0f}", f"{size / cpu / 1e6:,.0f}")
    console = Console(highlight=False, width=120)
    console.print(table)
    listing, alone, one = (cpu for _, cpu in list(best.values())[:3])
    ratio = one / (listing + alone)
    console.print(
        f"CPU time of the index over listing and SHA-256 together: {ratio:.2f} (goal: {MAX_RATIO:.0f} or less)"
    )
    console.print(f"over listing names alone, which reads no payload: {one / listing:.2f} (no goal)")


def cpu_seconds() -> float:
    """Of this process and of those that it has waited for."""
    times = os.times()
    return time.process_time() + times.children_user + times.children_system


if __name__ == "__main__":
    main()
