"""Lengths go in, the fill ratio and waiting time of each packer come out: ``python benchmarks/packing.py``.

Lengths are drawn from seeded distributions, or read from a file of whitespace-separated numbers (one per sample).
Waiting time counts the samples that were read while one sample waited for its pack.
"""

from __future__ import annotations

import argparse
import bisect
import random
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from packloom import rng
from packloom.packing import BestFitPacker, CheckedPacker, Cost, Packer, PackLimits, WindowPacker

MAX_WAIT = 2000


@dataclass(frozen=True, kw_only=True)
class Result:
    """One packer on one stream of lengths."""

    fill_mean: float
    fill_min: float
    waits: list[int]  # per sample, sorted
    waiting_most: int
    seconds: float


class NextFitPacker:
    """The simplest packer: one open pack, closed by the first sample that does not fit."""

    def __init__(self, limits: PackLimits) -> None:
        self._limits = limits
        self._pack: list[int] = []
        self._tokens = 0

    def push(self, index: int, cost: Cost) -> list[list[int]]:
        packs = self.finish() if self._tokens + cost.tokens > self._limits.tokens else []
        self._pack.append(index)
        self._tokens += cost.tokens
        return packs

    def finish(self) -> list[list[int]]:
        packs = [self._pack] if self._pack else []
        self._pack, self._tokens = [], 0
        return packs

    def state_dict(self) -> dict[str, Any]:
        raise NotImplementedError("a yardstick that is never saved")

    def load_state_dict(self, state: dict[str, Any]) -> None:
        raise NotImplementedError("a yardstick that is never saved")


def best_fit_decreasing(costs: Sequence[Cost], limits: PackLimits) -> list[list[int]]:
    """Longest first, each into the pack with least room that holds it; the last pack waits for the next window."""
    packs: list[list[int]] = []
    rooms: list[tuple[int, int]] = []  # (room, pack), sorted
    for position in sorted(range(len(costs)), key=lambda p: -costs[p].tokens):
        place = bisect.bisect_left(rooms, (costs[position].tokens, -1))
        if place == len(rooms):
            room, pack = limits.tokens, len(packs)
            packs.append([])
        else:
            room, pack = rooms.pop(place)
        packs[pack].append(position)
        bisect.insort(rooms, (room - costs[position].tokens, pack))
    return packs[:-1]


PACKERS: dict[str, Callable[[PackLimits], Packer]] = {
    "next-fit": NextFitPacker,
    "WindowPacker(BFD, 256)": lambda limits: WindowPacker(best_fit_decreasing, limits, max_wait=MAX_WAIT),
    "BestFitPacker": lambda limits: BestFitPacker(limits, max_wait=MAX_WAIT),
    "BestFitPacker(open_packs=64)": lambda limits: BestFitPacker(limits, open_packs=64, max_wait=MAX_WAIT),
}


def draw_lengths(name: str, count: int, pack_length: int, seed: int) -> list[int]:
    """``count`` lengths within 16..pack_length, from one of the named distributions."""
    generator = rng.derive(seed, "lengths", name)
    draw: dict[str, Callable[[random.Random, int], float]] = {
        "log-normal": lambda r, _: r.lognormvariate(6.9, 0.9),  # median 1k, a usual VLM mix
        "mixture": _draw_mixture,
        "halfish": lambda r, pack: r.gauss(0.42 * pack, 0.12 * pack),  # hard: two do not always fit, three seldom
        "long": lambda r, pack: r.lognormvariate(0, 0.5) * 0.44 * pack,
        "short": lambda r, _: r.lognormvariate(5.6, 0.8),
    }
    return [max(16, min(pack_length, int(draw[name](generator, pack_length)))) for _ in range(count)]


def _draw_mixture(generator: random.Random, pack_length: int) -> float:
    """55 % captions of one image, 20 % several images, 20 % text, 5 % video."""
    kind = generator.random()
    if kind < 0.55:
        return generator.gauss(1200, 350)
    if kind < 0.75:
        return generator.lognormvariate(8.3, 0.5)
    if kind < 0.95:
        return generator.lognormvariate(6.0, 0.9)
    return generator.uniform(0.35, 0.85) * pack_length


def measure(packer: Packer, lengths: Sequence[int], pack_length: int) -> Result:
    """Run the packer over the lengths, under the checker."""
    checked = CheckedPacker(packer, PackLimits(pack_length))
    waits, waiting_most = [], 0
    started = time.perf_counter()
    for index, length in enumerate(lengths):
        for pack in checked.push(index, Cost(length)):
            waits += [index - sample for sample in pack]
        waiting_most = max(waiting_most, len(checked.waiting))
    for pack in checked.finish():
        waits += [len(lengths) - 1 - sample for sample in pack]
    seconds = time.perf_counter() - started
    stats = checked.stats
    return Result(
        fill_mean=stats.fill_mean,
        fill_min=stats.fill_min,
        waits=sorted(waits),
        waiting_most=waiting_most,
        seconds=seconds,
    )


def report(title: str, lengths: Sequence[int], pack_length: int) -> Table:
    """A table with one line per packer."""
    table = Table(
        title=f"{title}: {len(lengths)} samples, mean {statistics.mean(lengths):.0f} tokens, pack {pack_length}",
        title_justify="left",
    )
    for name in ("packer", "fill mean", "fill min", "wait p50", "p99", "max", "waiting at most", "µs/sample"):
        table.add_column(name, justify="left" if name == "packer" else "right")
    for name, build in PACKERS.items():
        result = measure(build(PackLimits(pack_length)), lengths, pack_length)
        waits = result.waits
        table.add_row(
            name,
            f"{result.fill_mean:.2%}",
            f"{result.fill_min:.2%}",
            *(str(waits[min(len(waits) - 1, int(len(waits) * share))]) for share in (0.5, 0.99, 1.0)),
            str(result.waiting_most),
            f"{result.seconds / len(lengths) * 1e6:.0f}",
        )
    return table


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--lengths", type=Path, help="a file of sample lengths in tokens, one per sample")
    parser.add_argument("--pack-length", type=int, default=8192, help="tokens per pack (default: %(default)s)")
    parser.add_argument("--samples", type=int, default=6_000, help="samples per distribution (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    console = Console(width=120)
    if arguments.lengths:
        try:
            lengths = [int(word) for word in arguments.lengths.read_text(encoding="utf-8").split()]
        except (OSError, ValueError) as error:
            parser.error(f"cannot read whole numbers from {arguments.lengths}: {error}")
        kept = [length for length in lengths if 0 < length <= arguments.pack_length]
        if not kept:
            parser.error(f"{arguments.lengths} holds no length in 1..{arguments.pack_length}")
        if len(kept) < len(lengths):
            console.print(f"{len(lengths) - len(kept)} lengths outside 1..{arguments.pack_length} are left out")
        console.print(report(arguments.lengths.name, kept, arguments.pack_length))
        return
    for name in ("log-normal", "mixture", "halfish", "long", "short"):
        lengths = draw_lengths(name, arguments.samples, arguments.pack_length, arguments.seed)
        console.print(report(name, lengths, arguments.pack_length))


if __name__ == "__main__":
    main()
