"""Shards of tiny rows, an encoder for them, and runs of several ranks, that the tests of this folder share."""

from __future__ import annotations

import importlib
import shutil
import sys
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import pytest

from packloom.datasets import write_shards
from packloom.loader import Loader, build_loader
from packloom.types import Batch


@pytest.fixture(scope="session")
def encoder_class() -> type[Any]:
    """FakeEncoder of fake_encoder.py, imported by a name that spawned processes can import too."""
    if str(Path(__file__).parent) not in sys.path:
        sys.path.append(str(Path(__file__).parent))
    return importlib.import_module("fake_encoder").FakeEncoder


@pytest.fixture
def write(tmp_path: Path) -> Callable[..., str]:
    """``write(sizes, {place: fault})``: the folder of shards with one sample per size. Each has tokens of its own."""

    def written(
        sizes: Iterable[int],
        faults: dict[int, str] | None = None,
        per_shard: int = 1000,
        *,
        indexed: bool = True,
        media: bool = False,
        name: str = "shards",
    ) -> str:
        samples = []
        for place, size in enumerate(sizes):
            row = {"n": size, "token": place + 1, "fault": (faults or {}).get(place)}
            part = {"0.bin": bytes([place % 256, 7])} if media else {}
            samples.append({"__key__": f"{place:04d}", "json": row, **part})
        write_shards(samples, tmp_path / name, samples_per_shard=per_shard)
        if not indexed:
            shutil.rmtree(tmp_path / name / ".packloom")
        return str(tmp_path / name)

    return written


Seen = tuple[tuple[str, ...], tuple[int, ...]]


def seen(batch: Batch) -> Seen:
    """What two batches are compared by: keys, tokens and pixels. A batch of fillers only has no keys."""
    pixels = batch["pixel_values"].flatten().tolist() if "pixel_values" in batch else []
    return tuple(batch["sample_keys"]), (*batch["input_ids"].flatten().tolist(), *map(int, pixels))


@pytest.fixture(scope="session")
def view() -> Callable[[Batch], Seen]:
    """``view(batch)``: keys, tokens and pixels."""
    return seen


@pytest.fixture(scope="session")
def interleave() -> Callable[..., list[Seen]]:
    """``interleave(batches of rank 0, ...)``: the global sequence, without the batches that hold fillers only."""

    def interleaved(*ranks: Sequence[Batch]) -> list[Seen]:
        assert len({len(batches) for batches in ranks}) == 1, [len(batches) for batches in ranks]
        return [seen(batch) for step in zip(*ranks, strict=True) for batch in step if batch["sample_keys"]]

    return interleaved


@pytest.fixture(scope="session")
def build_ranks() -> Callable[..., list[Loader]]:
    """``build_ranks(path, encoder, dp_size, ...)``: the loader of each rank."""

    def built(path: str, encoder: Any, dp_size: int = 1, **settings: Any) -> list[Loader]:
        return [build_loader(path, encoder, dp_rank=rank, dp_size=dp_size, **settings) for rank in range(dp_size)]

    return built
