"""A dataset of a million samples goes in; what a resume costs after 1,000 of them and after a million comes out.

``python benchmarks/resume_far.py``: 1,000 shards, which are links to one (each with its own line in the manifest), 96
lanes, packs of 16 samples of 512 tokens. Since all samples are of one length, each round of batches moves every number
in a state by a constant. So the state far on is computed from the first two; that this is right is checked against a
state of a real run. Measured is from ``build_loader`` to the first batch; a new run stands beside it. The file caches
are warm.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import tempfile
import time
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from number_encoder import NumberEncoder, number_rows
from packloom import build_loader
from packloom.datasets import write_shards
from packloom.datasets.manifest import index_path, index_root, read_manifest, write_manifest
from packloom.loader import Loader
from packloom.loader.state import seal

PACK_LENGTH, SAMPLE_TOKENS = 8192, 512
MAX_RATIO, MAX_SECONDS = 1.5, 2.0


def link_shards(folder: Path, *, num_shards: int, num_samples: int) -> None:
    """Write one shard of equal samples, and link it and its index under all names."""
    first = folder / "first"
    write_shards(
        number_rows(num_samples, median=SAMPLE_TOKENS, most=SAMPLE_TOKENS, least=SAMPLE_TOKENS),
        first,
        samples_per_shard=num_samples,
    )
    manifest = read_manifest(index_root(str(first)), next_move="")
    if manifest is None:
        raise RuntimeError(f"{first} was written without an index")
    shards = folder / "shards"
    root = index_root(str(shards))
    os.makedirs(root)
    [entry] = manifest.shards
    entries = [replace(entry, name=f"shard-{number:06d}.tar") for number in range(num_shards)]
    for each in entries:
        os.symlink(first / entry.name, shards / each.name)
        os.symlink(index_path(index_root(str(first)), entry.name), index_path(root, each.name))
    write_manifest(root, entries)


def new_loader(folder: Path, num_lanes: int) -> Loader:
    encoder = NumberEncoder(PACK_LENGTH)
    return build_loader(folder / "shards", encoder, num_lanes=num_lanes, min_lane_samples=1, pack_length=PACK_LENGTH)


def states(folder: Path, num_lanes: int, num_rounds: int) -> list[dict[str, Any]]:
    """The states after each of the first rounds of a real run."""
    loader = new_loader(folder, num_lanes)
    batches = iter(loader)
    found = []
    for _ in range(num_rounds):
        for _ in islice(batches, num_lanes):
            pass
        found.append(json.loads(json.dumps(loader.state_dict())))
    return found


def extended(first: Any, second: Any, steps: int) -> Any:
    """What comes so many steps behind ``first`` if each step moves every number as from ``first`` to ``second``."""
    if isinstance(first, dict):
        return {name: extended(first[name], second[name], steps) for name in first}
    if isinstance(first, list):
        return [extended(one, two, steps) for one, two in zip(first, second, strict=True)]
    if isinstance(first, int) and not isinstance(first, bool):
        return first + steps * (second - first)
    return first


def first_batch_seconds(folder: Path, num_lanes: int, state: dict[str, Any] | None) -> float:
    """From nothing to the first batch."""
    start = time.perf_counter()
    loader = new_loader(folder, num_lanes)
    if state is not None:
        loader.load_state_dict(state)
    next(iter(loader))
    return time.perf_counter() - start


def compare(folder: Path, *, num_lanes: int, far: int, repeats: int) -> dict[str, list[float]]:
    """Name → seconds, in turns."""
    early, second, third = states(folder, num_lanes, 3)
    if seal(extended(early, second, 2)) != third:
        raise RuntimeError("a round moves the state by no constant: this benchmark's shortcut does not hold")
    one_round = num_lanes * PACK_LENGTH // SAMPLE_TOKENS  # samples
    rounds = max(1, round(far / one_round))
    places = {
        "a new run": None,
        f"after {one_round:,} samples": early,
        f"after {rounds * one_round:,} samples": seal(extended(early, second, rounds - 1)),
    }
    seconds: dict[str, list[float]] = {name: [] for name in places}
    for _ in range(repeats):
        for name, state in places.items():
            seconds[name].append(first_batch_seconds(folder, num_lanes, state))
    return seconds


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shards", type=int, default=1_000, help="(default: %(default)s)")
    parser.add_argument("--samples", type=int, default=1_000, help="per shard (default: %(default)s)")
    parser.add_argument(
        "--far", type=int, default=1_000_000, help="samples before the late save (default: %(default)s)"
    )
    parser.add_argument("--lanes", type=int, default=96, help="(default: %(default)s)")
    parser.add_argument("--repeats", type=int, default=15, help="(default: %(default)s)")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="packloom-bench-") as name:
        link_shards(Path(name), num_shards=options.shards, num_samples=options.samples)
        seconds = compare(Path(name), num_lanes=options.lanes, far=options.far, repeats=options.repeats)
    title = f"To the first batch, {options.shards:,} shards, {options.lanes} lanes"
    table = Table(title=title, title_justify="left")
    for heading in ("start", "median", "most"):
        table.add_column(heading, justify="left" if heading == "start" else "right")
    for start, times in seconds.items():
        table.add_row(start, f"{1e3 * statistics.median(times):.0f} ms", f"{1e3 * max(times):.0f} ms")
    console = Console(highlight=False, width=120)
    console.print(table)
    new, early, late = (statistics.median(times) for times in seconds.values())
    console.print(f"resume late over resume early: {late / early:.2f} (goal: {MAX_RATIO} or less)")
    console.print(f"first batch of a new run: {new:.2f} s (goal: {MAX_SECONDS:.0f} s or less)")


if __name__ == "__main__":
    main()
