"""A dataset of many small samples goes in; what a resume costs, early in a run and late, comes out.

``python benchmarks/resume.py``: packs of 8,192 tokens from samples of log-normal length (median 300 tokens), endless,
in 96 lanes. The encoder makes tokens from numbers, so that the times are those of the loader. At each place the state
is saved and loaded into a new loader; counted are the samples that it reads, encodes and loads media for before its
first batch. A new loader at the beginning, which has to fill a lane's buffer first, stands beside it. The state's size
is compared with its bound, and the bound at the most samples that the default packing lets wait is printed: per lane
``buffer_size``, or as many as make up one pack if they are short.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from number_encoder import NumberEncoder, number_rows
from packloom import build_loader
from packloom.config import PackingConfig
from packloom.datasets import write_shards
from packloom.loader import Loader

PACK_LENGTH = 8192
NUM_LANES = 96
REPEATS = 5


@dataclass(frozen=True, kw_only=True)
class Cost:
    """What came before the first batch, and what is in it."""

    place: int
    state_bytes: int
    num_waiting: int  # samples that the state names
    batch_samples: int
    encoded: int
    loaded: int
    load_ms: float
    first_batch_ms: float


def new_loader(folder: Path) -> tuple[Loader, NumberEncoder]:
    encoder = NumberEncoder(PACK_LENGTH)
    return build_loader(folder, encoder, num_lanes=NUM_LANES, min_lane_samples=1, pack_length=PACK_LENGTH), encoder


def measure(folder: Path, place: int, state: dict[str, Any] | None) -> Cost:
    """Load the state and take one batch, ``REPEATS`` times; the medians."""
    loads, firsts = [], []
    for _ in range(REPEATS):
        loader, encoder = new_loader(folder)
        loader.state_dict()  # so that the encoder's fingerprint is not measured
        start = time.perf_counter()
        if state is not None:
            loader.load_state_dict(state)
        loads.append(time.perf_counter() - start)
        batch = next(iter(loader))
        firsts.append(time.perf_counter() - start)
    return Cost(
        place=place,
        state_bytes=len(json.dumps(state)) if state is not None else 0,
        num_waiting=num_waiting(state) if state is not None else 0,
        batch_samples=batch["source_sample_num"],
        encoded=encoder.calls["encode"],
        loaded=encoder.calls["load"],
        load_ms=1e3 * statistics.median(loads),
        first_batch_ms=1e3 * statistics.median(firsts),
    )


def num_waiting(state: dict[str, Any]) -> int:
    """The samples that were drawn and did not leave yet, over all lanes."""
    lanes = state["lanes"].values()
    return sum(len(lane["waiting"]["waiting"][0]) + sum(map(len, lane["ready"])) for lane in lanes)


def bound(waiting: int) -> int:
    """The most bytes that a state of all lanes takes, as ``Loader.state_dict`` promises."""
    return 1_500 + 400 * NUM_LANES + 40 * waiting


def run(folder: Path, places: Iterable[int]) -> list[Cost]:
    costs = [measure(folder, 0, None)]
    loader, _ = new_loader(folder)
    done = 0
    stream = iter(loader)
    for place in sorted(places):
        while done < place:
            done += next(stream)["source_sample_num"]
        costs.append(measure(folder, done, json.loads(json.dumps(loader.state_dict()))))
    return costs


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--samples", type=int, default=20_000, help="of the dataset (default: %(default)s)")
    parser.add_argument("--places", type=int, nargs="+", default=[1_000, 20_000], help="samples before the save")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        write_shards(number_rows(arguments.samples, median=300, most=PACK_LENGTH), Path(name, "shards"))
        costs = run(Path(name, "shards"), arguments.places)
    table = Table(title=f"Before the first batch of a resumed loader ({NUM_LANES} lanes, packs of {PACK_LENGTH})")
    for heading in ("samples before", "state", "encoded", "media loaded", "in the batch", "load state", "first batch"):
        table.add_column(heading, justify="right")
    for cost in costs:
        table.add_row(
            f"{cost.place:,}" if cost.place else "a new run",
            f"{cost.state_bytes / 1024:.0f} KiB",
            f"{cost.encoded}",
            f"{cost.loaded}",
            f"{cost.batch_samples}",
            f"{cost.load_ms:.1f} ms",
            f"{cost.first_batch_ms:.1f} ms",
        )
    console = Console(width=120, highlight=False)
    console.print(table)
    early, late = costs[1], costs[-1]
    ratio = late.first_batch_ms / early.first_batch_ms
    console.print(
        f"time to the first batch, after {late.place:,} samples over after {early.place:,}: {ratio:.2f}"
        " (goal: 1.5 or less)"
    )
    share = max(cost.state_bytes / bound(cost.num_waiting) for cost in costs[1:])
    console.print(f"state of {NUM_LANES} lanes over its bound: {share:.2f} (goal: 1 or less)")
    buffer_size = PackingConfig().buffer_size
    for least in (8, 128):
        most = NUM_LANES * max(buffer_size, PACK_LENGTH // least) + NUM_LANES
        console.print(
            f"bound where no sample is shorter than {least} tokens: {bound(most) / 1024:,.0f} KiB over all ranks"
        )


if __name__ == "__main__":
    main()
