"""Shards of real JPEGs go in; what a restored loader does before its first batch comes out: packloom's and Energon's.

``make bench-loader`` (or ``python benchmarks/restore_peers.py`` where megatron-energon is installed; without it
packloom is measured alone). Each loader runs for some batches of four photographs, is saved as it stands, and is
restored by a new one. Counted are the calls of the decoder until the first batch has arrived, which includes what
workers decode ahead meanwhile; timed is from nothing to that batch. Energon runs with its defaults: a savable loader
whose workers keep a checkpoint per minute and replay from it; in its favour, images are decoded behind all buffers.
"""

from __future__ import annotations

import argparse
import io
import json
import multiprocessing
import os
import tempfile
import time
import warnings
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from rich.console import Console
from rich.table import Table

from jpeg_shards import write_jpeg_shards
from number_encoder import NumberEncoder
from packloom import build_loader
from packloom.types import EncodedMedia, EncodedSample, Media, RawSample, Row

try:
    import energon_peer
except ImportError:
    energon_peer = None

SAMPLE_TOKENS, PACK_LENGTH = 1000, 4096
SAMPLES_PER_BATCH = PACK_LENGTH // SAMPLE_TOKENS


class CountingDecoder:
    """Decodes JPEGs and counts, over all processes, in the length of a file."""

    def __init__(self, file: Path) -> None:
        self.file = file
        self.reset()

    def reset(self) -> None:
        """Count from here."""
        self.file.write_bytes(b"")

    @property
    def count(self) -> int:
        return self.file.stat().st_size

    def __call__(self, data: bytes) -> np.ndarray:
        descriptor = os.open(self.file, os.O_WRONLY | os.O_APPEND)
        os.write(descriptor, b".")
        os.close(descriptor)
        return np.asarray(Image.open(io.BytesIO(data)).convert("RGB"))


class JpegEncoder(NumberEncoder):
    """Samples of 1,000 tokens with one photograph, decoded when its batch is made."""

    def __init__(self, decode: CountingDecoder) -> None:
        super().__init__(PACK_LENGTH)
        self._decode = decode

    def encode_sample(self, raw: RawSample) -> EncodedSample:
        media = Media(kind="image", name="0.jpg", data=raw["0.jpg"])
        return EncodedSample(
            key=raw["__key__"],
            input_ids=torch.full((SAMPLE_TOKENS,), 7),
            loss_mask=torch.ones(SAMPLE_TOKENS, dtype=torch.bool),
            position_ids=torch.arange(SAMPLE_TOKENS)[None],
            media=(EncodedMedia(media=media, height=1, width=1, num_tokens=0, num_patches=1),),
        )

    def batch(self, samples: Sequence[EncodedSample]) -> list[Row]:
        for sample in samples:
            self._decode(sample.media[0].media.data)
        return [Row(sample=sample) for sample in samples]


@dataclass(frozen=True, kw_only=True)
class Cost:
    """Of one restore."""

    decodes: int
    state_bytes: int
    seconds: float


@dataclass(frozen=True, kw_only=True)
class Scenario:
    """What is saved, and when."""

    folder: Path
    steps: int
    num_workers: int
    packs: bool  # Energon with a packing buffer too; packloom always packs
    buffer: int = 300  # samples, of each of Energon's buffers
    min_lane_samples: int = 1024  # packloom's; by its default a small dataset has few lanes


def packloom_cost(scenario: Scenario, decode: CountingDecoder) -> Cost:
    def new() -> Any:
        return build_loader(
            scenario.folder,
            JpegEncoder(decode),
            pack_length=PACK_LENGTH,
            num_workers=scenario.num_workers,
            min_lane_samples=scenario.min_lane_samples,
        )

    loader = new()
    for _ in islice(loader, scenario.steps):
        pass
    saved = json.dumps(loader.state_dict())
    del loader
    return restored(decode, len(saved), lambda: load(new(), json.loads(saved)))


def load(loader: Any, state: dict[str, Any]) -> Any:
    loader.load_state_dict(state)
    return loader


def energon_cost(scenario: Scenario, decode: CountingDecoder) -> Cost:
    def new() -> Any:
        return energon_peer.training_loader(
            scenario.folder,
            decode,
            num_workers=scenario.num_workers,
            buffer=scenario.buffer,
            batch_size=SAMPLES_PER_BATCH,
            packing_buffer=scenario.buffer if scenario.packs else None,
        )

    loader = new()
    batches = iter(loader)
    for _ in islice(batches, scenario.steps):
        pass
    file = io.BytesIO()
    torch.save(loader.save_state_rank(), file)
    del batches, loader
    file.seek(0)
    state = torch.load(file, weights_only=False)
    return restored(decode, len(file.getvalue()), lambda: energon_peer.restore(new(), state))


def restored(decode: CountingDecoder, state_bytes: int, make: Callable[[], Any]) -> Cost:
    """Restore, take one batch, and count."""
    decode.reset()
    start = time.perf_counter()
    batches = iter(make())
    next(batches)
    return Cost(decodes=decode.count, state_bytes=state_bytes, seconds=time.perf_counter() - start)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--samples", type=int, default=4_000, help="of the dataset (default: %(default)s)")
    parser.add_argument("--steps", type=int, nargs="+", default=[60, 300], help="before the save (default: 60 300)")
    parser.add_argument("--workers", type=int, nargs="+", default=[2], help="(default: 2)")
    options = parser.parse_args()
    warnings.filterwarnings("ignore", message=".*pin_memory.*")
    table = Table(title="Before the first batch of a restored loader", title_justify="left")
    for heading in ("loader", "workers", "steps before", "decodes", "state", "first batch"):
        table.add_column(heading, justify="left" if heading == "loader" else "right")
    ratios = []
    with tempfile.TemporaryDirectory(prefix="packloom-bench-") as name:
        folder, decode = Path(name, "shards"), CountingDecoder(Path(name, "decodes"))
        write_jpeg_shards(folder, options.samples)
        if energon_peer:
            energon_peer.prepare(folder)
        for num_workers in options.workers:
            for steps in options.steps:
                costs = measure(folder, decode, steps, num_workers)
                ours = max(cost.decodes for name, cost in costs.items() if name.startswith("packloom"))
                ratios += [cost.decodes / ours for name, cost in costs.items() if name.startswith("Energon")]
                for loader, cost in costs.items():
                    size, time_taken = f"{cost.state_bytes / 1024:.0f} KiB", f"{cost.seconds:.2f} s"
                    table.add_row(loader, str(num_workers), str(steps), str(cost.decodes), size, time_taken)
    console = Console(highlight=False, width=120)
    console.print(table)
    if ratios:
        console.print(f"Energon's decodes over packloom's: {min(ratios):.1f} at least (goal: more than 1)")
    else:
        console.print("megatron-energon is not installed here: it is left out (`make bench-loader` installs it)")


def measure(folder: Path, decode: CountingDecoder, steps: int, num_workers: int) -> dict[str, Cost]:
    """Name → cost."""
    plain, packs = (
        Scenario(folder=folder, steps=steps, num_workers=num_workers, packs=packs) for packs in (False, True)
    )
    costs = {
        "packloom": apart(packloom_cost, packs, decode),
        "packloom, 96 lanes": apart(packloom_cost, replace(packs, min_lane_samples=1), decode),
    }
    if energon_peer:
        costs[f"Energon, shuffle {plain.buffer}"] = apart(energon_cost, plain, decode)
        costs[f"Energon, shuffle {packs.buffer} + packing {packs.buffer}"] = apart(energon_cost, packs, decode)
    return costs


def apart(
    measure_cost: Callable[[Scenario, CountingDecoder], Cost], scenario: Scenario, decode: CountingDecoder
) -> Cost:
    """Measured in a process of its own, so that no worker is left over for the next."""
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("fork")) as process:
        return process.submit(measure_cost, scenario, decode).result()


if __name__ == "__main__":
    main()
