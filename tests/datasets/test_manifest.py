"""Manifest: its file, its fingerprint, and what it refuses."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from packloom.datasets import open_dataset
from packloom.datasets.manifest import Manifest, ShardEntry
from packloom.errors import ShardError


def entry(name: str, num_samples: int = 1000, digest: str = "00") -> ShardEntry:
    return ShardEntry(name=name, num_samples=num_samples, num_faults=0, num_bytes=5, sha256=digest)


def test_a_manifest_survives_its_file() -> None:
    manifest = Manifest(shards=(entry("a.tar"), entry("b/ü\udcff.tar", 3, "ff")))
    assert Manifest.from_json(manifest.to_json(), where="here") == manifest
    assert len(manifest.to_json().splitlines()) == 4  # one per shard


def test_the_fingerprint_is_of_content_and_order_not_of_names() -> None:
    one = Manifest(shards=(entry("a", 3, "aa"), entry("b", 3, "bb")))
    assert one.fingerprint == Manifest(shards=(entry("x", 3, "aa"), entry("y", 3, "bb"))).fingerprint
    others = [
        Manifest(shards=(entry("a", 3, "bb"), entry("b", 3, "aa"))),
        Manifest(shards=(entry("a", 3, "aa"), entry("b", 2, "bb"))),
        Manifest(shards=(entry("a", 3, "aa"),)),
    ]
    assert len({one.fingerprint, *(other.fingerprint for other in others)}) == 4


@pytest.mark.parametrize(
    ("change", "match"),
    [
        (lambda data: {**data, "version": 9}, "here has version 9, this packloom reads 1"),
        (lambda data: {**data, "fingerprint": "0"}, "here was changed: it states fingerprint 0"),
        (lambda data: {**data, "shards": [{"name": "a"}]}, "here is damaged"),
        (lambda data: {**data, "shards": [{**data["shards"][0], "num_samples": -1}]}, "a negative number"),
        (lambda data: [], "here is damaged"),
    ],
)
def test_what_is_no_manifest_is_refused(change, match: str) -> None:
    data = json.loads(Manifest(shards=(entry("a"),)).to_json())
    with pytest.raises(ShardError, match=match):
        Manifest.from_json(json.dumps(change(data)), where="here")


@pytest.mark.parametrize("name", ["../evil.tar", "/etc/x.tar", "a/../../x.tar", "", "a//b.tar", "a\\b.tar"])
def test_no_name_leaves_the_folder(tmp_path: Path, name: str) -> None:
    (tmp_path / ".packloom").mkdir()
    (tmp_path / ".packloom" / "manifest.json").write_text(Manifest(shards=(entry(name),)).to_json())
    with pytest.raises(ShardError, match=r"no plain relative name|no longer in"):
        open_dataset(tmp_path)


def test_ten_million_samples_open_from_the_manifest_alone(tmp_path: Path) -> None:
    entries = tuple(entry(f"shard-{n:06d}.tar", 5000, digest=f"{n:064x}") for n in range(2000))
    (tmp_path / ".packloom").mkdir()
    (tmp_path / ".packloom" / "manifest.json").write_text(Manifest(shards=entries).to_json())
    for item in entries:
        (tmp_path / item.name).touch()
    dataset = open_dataset(tmp_path)  # there is not one index file
    assert (len(dataset), dataset.num_shards) == (10_000_000, 2000)
    assert dataset.locate(9_999_999) == (1999, 4999)
    assert dataset.locate(5_000_000) == (1000, 0)
    assert dataset.position(1000, 0) == 5_000_000
    with pytest.raises(ShardError, match=r"shard-001000\.tar\.index cannot be read: .*run `packloom index"):
        dataset[5_000_000]
