"""A dataset of many small samples goes in; what a resume costs, early in a run and late, comes out.

``python benchmarks/resume.py``: packs of 8,192 tokens from samples of log-normal length (median 300 tokens), endless,
in 96 lanes. The encoder makes tokens from numbers, so that the times are those of the loader. At each place the state
is saved and loaded into a new loader; counted are the samples that it reads, encodes and loads media for before its
first batch. A new loader at the beginning, which has to fill a lane's buffer first, stands beside it.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import tempfile
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.table import Table

from packloom import build_loader
from packloom.collates import collate
from packloom.datasets import write_shards
from packloom.loader import Loader
from packloom.rng import derive
from packloom.types import Batch, EncodedSample, RawSample, Row

PACK_LENGTH = 8192
NUM_LANES = 96
REPEATS = 5


class NumberEncoder:
    """Rows ``{"n": tokens}`` become that many tokens; ``calls`` counts what is done."""

    def __init__(self) -> None:
        self.max_length = PACK_LENGTH
        self.calls: Counter[str] = Counter()

    def encode_sample(self, raw: RawSample) -> EncodedSample:
        self.calls["encode"] += 1
        size = json.loads(raw["json"])["n"]
        return EncodedSample(
            key=raw["__key__"],
            input_ids=torch.full((size,), 7),
            loss_mask=torch.ones(size, dtype=torch.bool),
            position_ids=torch.arange(size)[None],
        )

    def batch(self, samples: Sequence[EncodedSample]) -> list[Row]:
        self.calls["load"] += len(samples)
        return [Row(sample=sample) for sample in samples]

    def collate(self, rows: Sequence[Row], **settings: Any) -> Batch:
        return collate(rows, pad_id=0, **settings)


@dataclass(frozen=True, kw_only=True)
class Cost:
    """What came before the first batch, and what is in it."""

    place: int
    state_bytes: int
    batch_samples: int
    encoded: int
    loaded: int
    load_ms: float
    first_batch_ms: float


def samples(count: int) -> Iterator[dict[str, Any]]:
    rng = derive("benchmark", "resume")
    for number in range(count):
        size = min(PACK_LENGTH, max(8, round(rng.lognormvariate(math.log(300), 0.8))))
        yield {"__key__": f"{number:09d}", "json": {"n": size}}


def new_loader(folder: Path) -> tuple[Loader, NumberEncoder]:
    encoder = NumberEncoder()
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
        batch_samples=batch["source_sample_num"],
        encoded=encoder.calls["encode"],
        loaded=encoder.calls["load"],
        load_ms=1e3 * statistics.median(loads),
        first_batch_ms=1e3 * statistics.median(firsts),
    )


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
    parser.add_argument("--places", type=int, nargs="+", default=[1_000, 100_000], help="samples before the save")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        write_shards(samples(arguments.samples), Path(name, "shards"))
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
    console = Console()
    console.print(table)
    early, late = costs[1], costs[-1]
    ratio = late.first_batch_ms / early.first_batch_ms
    console.print(f"Time to the first batch, after {late.place:,} samples over after {early.place:,}: {ratio:.2f}")


if __name__ == "__main__":
    main()
