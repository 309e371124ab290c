"""A sorted dataset goes in, how well each way to shuffle mixes it comes out: ``python benchmarks/shuffle.py``.

The dataset is the worst case: it is sorted by class, and each shard is one class. Three figures, each beside what a
full shuffle gives:

batch noise   standard deviation of a batch's mean class over that of a full shuffle; 1 is perfect, more is worse
classes       distinct classes in a batch
displacement  mean distance of a sample from its own place over a third of the dataset (what a full shuffle gives); 1
"""

from __future__ import annotations

import argparse
import itertools
import random
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
from rich.console import Console
from rich.table import Table

from packloom import rng
from packloom.datasets.epoch_order import EpochOrder
from packloom.datasets.order import shuffle_window


@dataclass(frozen=True, kw_only=True)
class Task:
    """The dataset and the batches."""

    total: int
    shard: int  # samples per shard, which is a class
    lanes: int
    batch: int  # global, samples


def interleave(lanes: list[Iterator[int]]) -> Iterator[int]:
    """One sample from each lane in turn, as global batches do."""
    for row in itertools.zip_longest(*lanes):
        yield from (position for position in row if position is not None)


def full(task: Task) -> Iterator[int]:
    """Every order is equally likely."""
    return iter(np.random.default_rng(0).permutation(task.total).tolist())


def block_window(block: int, window: int) -> Callable[[Task], Iterator[int]]:
    """packloom's order."""

    def ordered(task: Task) -> Iterator[int]:
        order = EpochOrder(
            total=task.total, fingerprint="benchmark", num_lanes=task.lanes, block_size=block, window=window
        )
        return interleave([order.iterate(lane) for lane in range(task.lanes)])

    return ordered


def shard_buffer(buffer: int) -> Callable[[Task], Iterator[int]]:
    """Shuffled shards dealt to the lanes, and a shuffle buffer in each: what plain webdataset users have."""

    def ordered(task: Task) -> Iterator[int]:
        shards = [range(first, min(first + task.shard, task.total)) for first in range(0, task.total, task.shard)]
        rng.derive("benchmark", "shards").shuffle(shards)
        lanes = []
        for lane in range(task.lanes):
            stream = itertools.chain.from_iterable(shards[lane :: task.lanes])
            lanes.append(shuffle_window(stream, window=buffer, rng=random.Random(lane)))
        return interleave(lanes)

    return ordered


def measure(order: np.ndarray, task: Task) -> tuple[float, float, float]:
    """(standard deviation of the batch mean, classes per batch, displacement)."""
    classes = order[: len(order) // task.batch * task.batch].reshape(-1, task.batch) // task.shard
    distinct = float(np.mean([len(np.unique(row)) for row in classes]))
    moved = float(np.abs(order - np.arange(len(order))).mean() / (len(order) / 3))
    return float(classes.mean(axis=1).std()), distinct, moved


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--samples", type=int, default=1_000_000)
    parser.add_argument("--shard", type=int, default=1000)
    parser.add_argument("--lanes", type=int, default=64)
    parser.add_argument("--batch", type=int, default=256)
    options = parser.parse_args()
    task = Task(total=options.samples, shard=options.shard, lanes=options.lanes, batch=options.batch)
    ways: dict[str, Callable[[Task], Iterator[int]]] = {"full shuffle": full}
    for block, window in ((1, 4096), (16, 1024), (16, 4096), (32, 4096), (64, 4096), (64, 16384), (1000, 4096)):
        ways[f"packloom block {block}, window {window}"] = block_window(block, window)
    for buffer in (1000, 4096):
        ways[f"shards + buffer {buffer}"] = shard_buffer(buffer)
    table = Table("order", "batch noise", "classes", "displacement", "µs per sample")
    reference = 0.0
    for name, way in ways.items():
        began = time.perf_counter()
        order = np.fromiter(way(task), dtype=np.int64, count=task.total)
        seconds = time.perf_counter() - began
        noise, distinct, moved = measure(order, task)
        reference = reference or noise
        cells = (f"{noise / reference:.2f}", f"{distinct:.1f}", f"{moved:.3f}", f"{seconds / task.total * 1e6:.2f}")
        table.add_row(name, *cells)
    Console().print(table)


if __name__ == "__main__":
    main()
