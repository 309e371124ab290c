"""Photographs and chats go in; what a packed collate costs beside copying its bytes, and what waits, weighed, out.

``python benchmarks/batch_costs.py``. The copy: every tensor of the finished batch copied once into fresh memory. The
peer's buffer: the same samples with a Hugging Face processor's float pixels, as one that packs after processing holds.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from contenders.workload import BUFFER, MAX_PIXELS, MIN_PIXELS, PACK_LENGTH
from packloom import TaskEncoder
from packloom.bench import tensor_bytes
from packloom.datasets import open_dataset
from packloom.loader.parked import park
from packloom.types import EncodedSample
from photo_shards import write_photo_shards
from throughput import find_processor

ROUNDS = 40


def seconds_of(steps: dict[str, Callable[[], object]]) -> dict[str, float]:
    """Median CPU time of each; they take turns."""
    times: dict[str, list[float]] = {name: [] for name in steps}
    for _ in range(ROUNDS):
        for name, step in steps.items():
            started = time.process_time()
            step()
            times[name].append(time.process_time() - started)
    return {name: statistics.median(each) for name, each in times.items()}


def held_bytes(sample: EncodedSample) -> int:
    """Of a sample that waits: its tensors and what is left of its media."""
    tensors = (sample.input_ids, sample.loss_mask, sample.position_ids, *sample.token_tensors.values())
    return sum(tensor.nbytes for tensor in tensors) + sum(len(item.media.data) for item in sample.media)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--processor", help="folder of a Qwen2.5-VL processor (default: that of ../shared)")
    options = parser.parse_args()
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory(prefix="packloom-bench-") as name:
        write_photo_shards(Path(name) / "shards", BUFFER)
        bounds: dict[str, Any] = {"min_pixels": MIN_PIXELS, "max_pixels": MAX_PIXELS, "max_length": PACK_LENGTH}
        encoder = TaskEncoder.from_pretrained(find_processor(options.processor, Path(name)), **bounds)
        dataset = open_dataset(Path(name) / "shards")
        raws = [dataset[number] for number in range(BUFFER)]
    samples = [encoder.encode_sample(raw) for raw in raws]
    rows = encoder.batch(samples[:5])

    def collate() -> dict[str, Any]:
        return dict(encoder.collate(rows, expand_pixels=False))

    batch = collate()
    spent = seconds_of(
        {"collate": collate, "copy": lambda: [v.clone() for v in batch.values() if isinstance(v, Tensor)]}
    )
    print(
        f"collate of {len(rows)} rows ({tensor_bytes(batch) / 1e6:.1f} MB): {spent['collate'] * 1e3:.2f} ms, copying"
        f" its bytes: {spent['copy'] * 1e3:.2f} ms: {spent['collate'] / spent['copy']:.2f} times (goal: 2 or less)"
    )
    waiting = sum(held_bytes(park(sample, raw).sample) for sample, raw in zip(samples, raws, strict=True))
    pixels = sum(sample.num_patches for sample in samples) * encoder.images.fast.frames * 3 * 14**2 * 4  # type: ignore[union-attr]
    print(
        f"{BUFFER} samples that wait: {waiting / 1e6:.2f} MB; with the processor's float pixels {pixels / 1e6:.0f} MB:"
        f" 1/{pixels / waiting:,.0f} (goal: 1/20 or less)"
    )


if __name__ == "__main__":
    main()
