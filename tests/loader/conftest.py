"""Shards of tiny rows, and an encoder for them, that the tests of this folder share."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest

from packloom.datasets import write_shards


@pytest.fixture(scope="session")
def encoder_class() -> type[Any]:
    """FakeEncoder of fake_encoder.py, imported by a name that spawned processes can import too."""
    sys.path.append(str(Path(__file__).parent))
    return importlib.import_module("fake_encoder").FakeEncoder


@pytest.fixture
def write(tmp_path: Path) -> Callable[..., str]:
    """``write(sizes, {place: fault})``: the folder of shards with one sample per size."""

    def written(sizes: Iterable[int], faults: dict[int, str] | None = None, per_shard: int = 1000) -> str:
        rows = [{"n": size, "fault": (faults or {}).get(place)} for place, size in enumerate(sizes)]
        samples = [{"__key__": f"{place:04d}", "json": row} for place, row in enumerate(rows)]
        write_shards(samples, tmp_path / "shards", samples_per_shard=per_shard)
        return str(tmp_path / "shards")

    return written
