"""Damage to the shards of a running set costs the samples that it hits, each reported with its place, and no others."""

from __future__ import annotations

import json
import random
import shutil
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from packloom.datasets import write_shards

Fixture = Callable[..., Any]
#: (key, part) → (shard, offset, bytes) of each payload.
Payloads = dict[tuple[str, str], tuple[str, int, bytes]]
NUM_SHARDS, PER_SHARD, NUM_HITS = 20, 12, 200


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Payloads]:
    """A set of 20 shards, and where each of its payloads lies."""
    folder, rng = tmp_path_factory.mktemp("whole"), random.Random(0)
    samples = [
        {
            "__key__": f"{place:04d}",
            "json": {"n": 1 + place % 5, "token": place + 1},
            "0.bin": rng.randbytes(1500),
        }
        for place in range(NUM_SHARDS * PER_SHARD)
    ]
    write_shards(samples, folder / "s", samples_per_shard=PER_SHARD)
    found: Payloads = {}
    for path in sorted((folder / "s").glob("*.tar")):
        with tarfile.open(path) as archive:
            for member in archive:
                key, _, part = member.name.partition(".")
                found[key, part] = path.name, member.offset_data, archive.extractfile(member).read()
    return folder / "s", found


def damage(folder: Path, rng: random.Random) -> None:
    """200 hits: bytes are flipped or zeroed, runs of bytes change places, shards are cut off."""
    paths = sorted(folder.glob("*.tar"))
    assert len(paths) == NUM_SHARDS
    for _ in range(NUM_HITS):
        path = rng.choice(paths)
        data = bytearray(path.read_bytes())
        at, size = rng.randrange(len(data) - 256), rng.randrange(1, 128)
        kind = rng.choices(("flip", "zero", "reorder", "cut"), (50, 20, 28, 2))[0]
        if kind == "flip":
            data[at] ^= 1 << rng.randrange(8)
        elif kind == "zero":
            data[at : at + size] = bytes(size)
        elif kind == "reorder":
            data[at : at + 2 * size] = data[at + size : at + 2 * size] + data[at : at + size]
        else:
            del data[max(at, 512) :]
            data += bytes(max(0, 300 - len(data)))
        path.write_bytes(data)


def hit(folder: Path, payloads: Payloads) -> dict[str, tuple[str, int]]:
    """Key → (shard, offset of the first payload that is no longer what it was)."""
    found: dict[str, tuple[str, int]] = {}
    for (key, _), (shard, offset, data) in sorted(payloads.items(), key=lambda item: item[1][:2]):
        if (folder / shard).read_bytes()[offset : offset + len(data)] != data:
            found.setdefault(key, (shard, offset))
    return found


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_only_what_was_hit_is_lost(
    whole: tuple[Path, Payloads], tmp_path: Path, encoder_class: Any, build_ranks: Fixture, seed: int
) -> None:
    original, payloads = whole
    folder = tmp_path / "s"
    shutil.copytree(original, folder)
    damage(folder, random.Random(seed))
    lost = hit(folder, payloads)
    assert 40 < len(lost) < 200
    undamaged = sorted({key for key, _ in payloads} - set(lost))
    settings = {"epochs": 1, "num_lanes": 8, "min_lane_samples": 10, "max_consecutive_errors": 1000}
    for dp_size, layout in ((1, {"layout": "padded", "micro_batch_size": 4}), (4, {})):
        path = tmp_path / f"bad-{dp_size}.jsonl"
        ranks = build_ranks(str(folder), encoder_class(), dp_size, quarantine=str(path), **settings, **layout)
        batches = [list(rank) for rank in ranks]
        assert len({len(own) for own in batches}) == 1
        assert sorted(key for own in batches for batch in own for key in batch["sample_keys"]) == undamaged
        records = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
        assert {record["key"]: (Path(record["source"]).name, record["offset"]) for record in records} == lost
        assert len(records) == len(lost)
        assert {record["code"] for record in records} <= {"read.checksum", "read.truncated"}
        assert all(record["source"] in record["reason"] for record in records)
