"""A number of samples goes in; the memory of a long run over small images comes out, over time.

``python benchmarks/soak.py --samples 1000000``: an endless shuffled loader over 20,000 chats, each with an image of 56
to 112 pixels. Prints the resident memory of the main process and of all workers together, 20 times over the run, and
the growth between the first and the last quarter. Linux only.
"""

from __future__ import annotations

import argparse
import io
import itertools
import multiprocessing
import os
import statistics
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from PIL import Image

from loader_memory import resident_mib
from packloom import TaskEncoder, build_loader
from packloom.datasets import write_shards
from throughput import find_processor

SIDES = (56, 84, 112)
GOAL = 0.03
PLACES = 20


def rows(count: int) -> Iterator[dict[str, Any]]:
    """Chats of one turn about a small noisy image."""
    files = []
    for width, height in itertools.product(SIDES, SIDES):
        file = io.BytesIO()
        Image.effect_noise((width, height), 60).convert("RGB").save(file, "JPEG")
        files.append(file.getvalue())
    for number in range(count):
        question = [{"type": "image", "image": "0.jpg"}, {"type": "text", "text": f"What is in picture {number}?"}]
        messages = [
            {"role": "user", "content": question},
            {"role": "assistant", "content": "Noise. " * (number % 30 + 1)},
        ]
        yield {"__key__": f"{number:08d}", "json": {"messages": messages}, "0.jpg": files[number % len(files)]}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--processor", help="folder of a Qwen2.5-VL processor (default: that of ../shared)")
    parser.add_argument("--samples", type=int, default=100_000, help="to go through (default: %(default)s)")
    parser.add_argument("--minutes", type=float, help="stop after so long, whatever was reached")
    parser.add_argument("--dataset", type=int, default=20_000, help="samples of the dataset (default: %(default)s)")
    parser.add_argument("--workers", type=int, default=2, help="(default: %(default)s)")
    options = parser.parse_args()
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory(prefix="packloom-bench-") as name:
        write_shards(rows(options.dataset), Path(name) / "shards")
        encoder = TaskEncoder.from_pretrained(find_processor(options.processor, Path(name)), max_length=2048)
        loader = build_loader(Path(name) / "shards", encoder, pack_length=2048, num_workers=options.workers)
        seen = watch(loader, options.samples, 60 * options.minutes if options.minutes else None)
    report(seen)


def watch(loader: Any, samples: int, seconds: float | None) -> list[tuple[int, float, float]]:
    """(samples so far, MiB of this process, MiB of its workers), PLACES times and at the end."""
    started, done, seen = time.perf_counter(), 0, []
    for batch in loader:
        done += batch["source_sample_num"]
        spent = time.perf_counter() - started
        share = max(done / samples, spent / seconds if seconds else 0.0)
        if share * PLACES >= len(seen) + 1:
            workers = sum(resident_mib(child.pid) for child in multiprocessing.active_children() if child.pid)
            seen.append((done, resident_mib(os.getpid()), workers))
            print(
                f"{done:>10,} samples {spent:7.0f} s: main {seen[-1][1]:.1f} MiB, workers {workers:.1f} MiB", flush=True
            )
        if share >= 1:
            break
    return seen


def report(seen: list[tuple[int, float, float]]) -> None:
    """The growth, quarter against quarter."""
    quarter = max(1, len(seen) // 4)
    for place, name in ((1, "main process"), (2, "workers")):
        early = statistics.median(entry[place] for entry in seen[:quarter])
        late = statistics.median(entry[place] for entry in seen[-quarter:])
        if early:
            print(
                f"{name}: {100 * (late / early - 1):+.1f} % between the first and the last quarter (goal: {GOAL:.0%})"
            )


if __name__ == "__main__":
    main()
