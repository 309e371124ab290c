"""Lengths of a synthetic dataset go in; time, memory, fill and balance of its plan come out: ``make bench-plan``.

Lengths and vision patches are those of a mix of captions, several images, text and video. What is timed begins where
all lengths are known and ends where a loader has opened the file and knows the order of its packs. The second table is
the online ``balance="cost"``: packs of the streaming packer, ordered anew window by window.
"""

from __future__ import annotations

import argparse
import resource
import tempfile
import time
from dataclasses import asdict
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from rich.console import Console
from rich.table import Table

from packloom.config import DataConfig, PackingConfig, SourceConfig
from packloom.datasets.permutation import make_permutation
from packloom.loader.feed import OrderedFeed
from packloom.loader.lengths import Lengths
from packloom.loader.plan_feed import PlanFeed
from packloom.loader.plan_file import write_plan
from packloom.loader.plan_make import pack_costs, plan_epochs
from packloom.packing import BestFitPacker, Cost, PackLimits
from packloom.packing.balance import balanced_order, imbalance
from packloom.packing.cost import StepCost
from packloom.rng import derive_seed

RANKS = (2, 8, 32, 96)
WINDOWS = (96, 192, 768)


def draw_lengths(count: int, pack_length: int, seed: int) -> Lengths:
    """55 % captions of one image, 20 % several images, 20 % text, 5 % video; images of 4 patches a token."""
    generator = np.random.default_rng(derive_seed(seed, "plan lengths"))
    kind = generator.random(count)
    kinds = (kind < 0.55, kind < 0.75, kind < 0.95)
    tokens = np.select(
        kinds,
        [
            generator.normal(1200, 350, count),
            generator.lognormal(8.3, 0.5, count),
            generator.lognormal(6.0, 0.9, count),
        ],
        generator.uniform(0.35, 0.85, count) * pack_length,
    )
    share = np.select(kinds, [generator.uniform(0.4, 0.9, count), generator.uniform(0.3, 0.9, count), 0.0], 0.9)
    tokens = np.clip(tokens, 16, pack_length).astype(np.int32)
    patches = 4 * (tokens * share).astype(np.int32)
    return Lengths(
        total=count,
        numbers=np.arange(count),
        tokens=tokens,
        patches=patches,
        media_tokens=patches // 4,
        loss_tokens=tokens - patches // 4,
        has_media=patches > 0,
    )


def measure(lengths: Lengths, packing: PackingConfig, balance_ranks: int, folder: Path) -> Table:
    """Plan one epoch into a file of ``folder``."""
    config = DataConfig(source=SourceConfig(path="synthetic", epochs=1), packing=packing)
    limits = PackLimits(packing.pack_length or 1, packing.max_patches)
    feed = OrderedFeed(lengths.tokens.size, "synthetic", num_lanes=1)
    begun = time.perf_counter()
    costs, codes = pack_costs(lengths, config, limits)
    header = {
        "dataset": feed.fingerprint,
        "encoder": {},
        "aux": {},
        "settings": {f"cost_{name}": value for name, value in asdict(StepCost()).items()},
        "balance_ranks": balance_ranks,
        "num_samples": lengths.tokens.size,
        "left_out": dict(codes),
    }
    plan = write_plan(folder / "plan.parquet", header, plan_epochs(feed, lengths, costs, limits, config))
    written = time.perf_counter()
    ordered = PlanFeed(feed, plan).costs(0)  # type: ignore[arg-type]
    opened = time.perf_counter()
    table = Table(title=f"{lengths.tokens.size:,} samples, packs of {packing.pack_length:,}", title_justify="left")
    for name in ("", ""):
        table.add_column(name, justify="right" if table.columns else "left")
    packed = int(costs.sum())
    table.add_row("planned and written", f"{written - begun:.1f} s")
    table.add_row("opened by a loader", f"{opened - written:.1f} s")
    table.add_row("peak memory", f"{resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20:.2f} GiB")
    table.add_row("file", f"{plan.path.stat().st_size / 2**20:.0f} MiB")
    table.add_row("packs", f"{plan.num_packs[0]:,}")
    table.add_row("fill", f"{packed / plan.num_packs[0] / limits.tokens:.3%}")
    _add_balance(table, ordered)
    return table


def measure_online(lengths: Lengths, pack_length: int) -> Table:
    """The steps of the streaming packer, as they come and reordered in windows."""
    limits = PackLimits(pack_length)
    packer = BestFitPacker(limits)
    packs = [
        pack
        for index, (tokens, patches) in enumerate(zip(lengths.tokens.tolist(), lengths.patches.tolist(), strict=True))
        for pack in packer.push(index, Cost(tokens, patches))
    ]
    each = StepCost().of(lengths.tokens, lengths.patches)
    costs = np.array([each[pack].sum() for pack in packs])
    table = Table(title=f'balance="cost" over {len(packs):,} packs of {pack_length:,}', title_justify="left")
    table.add_column("balance_window")
    for ranks in RANKS:
        table.add_column(f"max/mean, {ranks} ranks", justify="right")
    table.add_row("off", *(f"{imbalance(costs, ranks):.4f}" for ranks in RANKS))
    for window in (window for window in WINDOWS if window <= len(packs)):
        parts = [costs[start : start + window] for start in range(0, costs.size // window * window, window)]
        ordered = [part[balanced_order(part, np.arange(part.size), group=window)] for part in parts]
        table.add_row(f"{window}", *(f"{imbalance(np.concatenate(ordered), ranks):.4f}" for ranks in RANKS))
    return table


def _add_balance(table: Table, ordered: NDArray[np.int64]) -> None:
    shuffled = ordered[make_permutation(ordered.size, "unbalanced").at_many(np.arange(ordered.size))]
    for ranks in RANKS:
        steps = ordered[: ordered.size // ranks * ranks].reshape(-1, ranks)
        worst = np.quantile(steps.max(axis=1) / steps.mean(axis=1), 0.999)
        table.add_row(
            f"max/mean cost of a step, {ranks} ranks",
            f"{imbalance(ordered, ranks):.4f} (99.9 % ≤ {worst:.4f}; random order {imbalance(shuffled, ranks):.4f})",
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--samples", type=int, default=10_000_000)
    parser.add_argument("--online-samples", type=int, default=40_000)
    parser.add_argument("--pack-length", type=int, default=8192)
    parser.add_argument("--max-patches", type=int, default=None)
    parser.add_argument("--balance-ranks", type=int, default=96)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    packing = PackingConfig(pack_length=arguments.pack_length, max_patches=arguments.max_patches)
    console = Console(width=120)
    lengths = draw_lengths(arguments.samples, arguments.pack_length, arguments.seed)
    with tempfile.TemporaryDirectory() as folder:
        console.print(measure(lengths, packing, arguments.balance_ranks, Path(folder)))
    online = draw_lengths(arguments.online_samples, arguments.pack_length, arguments.seed)
    console.print(measure_online(online, arguments.pack_length))


if __name__ == "__main__":
    main()
