"""A dataset of small samples goes in; the memory of each process early and late in a run comes out, with their ratio.

``python benchmarks/loader_memory.py``: packs of 2,048 tokens, shuffled, endless; samples of about 100 tokens with a
medium of 4 KB, which is read again for a sample that had to wait. What is resident after 50,000 samples is compared
with what was after 5,000, without workers and with two; of each process the growth is printed. Linux only.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import tempfile
from pathlib import Path

from rich.console import Console
from rich.table import Table

from number_encoder import NumberEncoder, number_rows
from packloom import build_loader
from packloom.datasets import write_shards

PACK_LENGTH = 2048
GOAL = 0.03


def resident_mib(pid: int) -> float:
    """Resident memory of a process in MiB."""
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 2**20


def measure(folder: Path, num_workers: int, places: tuple[int, int]) -> dict[str, list[float]]:
    """Process → resident MiB after so many samples."""
    loader = build_loader(folder, NumberEncoder(PACK_LENGTH), pack_length=PACK_LENGTH, num_workers=num_workers)
    batches = iter(loader)
    done = 0
    found: dict[str, list[float]] = {}
    for place in places:
        while done < place:
            done += next(batches)["source_sample_num"]
        workers = sorted(worker.pid or 0 for worker in multiprocessing.active_children())
        for name, pid in {"main": os.getpid(), **{f"worker {n}": pid for n, pid in enumerate(workers)}}.items():
            found.setdefault(name, []).append(resident_mib(pid))
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--early", type=int, default=5_000, help="samples (default: %(default)s)")
    parser.add_argument("--late", type=int, default=50_000, help="samples (default: %(default)s)")
    parser.add_argument("--samples", type=int, default=20_000, help="of the dataset (default: %(default)s)")
    parser.add_argument("--workers", type=int, nargs="+", default=[0, 2], help="(default: 0 2)")
    options = parser.parse_args()
    table = Table(title="Resident memory", title_justify="left")
    for heading in ("workers", "process", f"after {options.early:,}", f"after {options.late:,}", "growth"):
        table.add_column(heading, justify="right")
    growths = []
    with tempfile.TemporaryDirectory(prefix="packloom-bench-") as name:
        write_shards(number_rows(options.samples, median=80, most=PACK_LENGTH, media_bytes=4_000), Path(name))
        for num_workers in options.workers:
            for process, (early, late) in measure(Path(name), num_workers, (options.early, options.late)).items():
                growths.append(late / early - 1)
                table.add_row(
                    str(num_workers), process, f"{early:.1f} MiB", f"{late:.1f} MiB", f"{100 * growths[-1]:+.1f} %"
                )
    console = Console()
    console.print(table)
    console.print(f"Growth of resident memory: {100 * max(growths):.1f} % at most (goal: {100 * GOAL:.0f} % or less)")


if __name__ == "__main__":
    main()
