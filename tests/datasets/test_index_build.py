"""build_index and write_shards' index: what lands in the folder, what is skipped, what is reported."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

import packloom.datasets.index_build as index_build
from packloom.datasets import build_index, open_dataset, write_shards
from packloom.datasets.index import ShardIndex
from packloom.errors import ConfigError, SampleError, ShardError

MakeShard = Callable[..., str]


def indexed_shards(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of the shards that are read from now on."""
    names: list[str] = []
    real = index_build.index_shard

    def spy(path: str, *, name: str) -> ShardIndex:
        names.append(name)
        return real(path, name=name)

    monkeypatch.setattr(index_build, "index_shard", spy)
    return names


def files(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())


def test_a_folder_gets_an_index_per_shard_and_a_manifest(shards: Path) -> None:
    report = build_index(shards)
    assert files(shards / ".packloom") == ["a.tar.index", "b.tar.index", "c.tar.index", "manifest.json"]
    manifest = json.loads((shards / ".packloom" / "manifest.json").read_text())
    assert [(shard["name"], shard["num_samples"]) for shard in manifest["shards"]] == [
        ("a.tar", 4),
        ("b.tar", 1),
        ("c.tar", 3),
    ]
    assert [shard["num_bytes"] for shard in manifest["shards"]] == [
        (shards / name).stat().st_size for name in ("a.tar", "b.tar", "c.tar")
    ]
    assert (report.num_indexed, report.num_skipped, report.num_samples) == (3, 0, 8)
    assert report.manifests[str(shards)].fingerprint == manifest["fingerprint"]
    assert (report.faults, report.failures) == ([], [])


def test_what_is_up_to_date_is_not_read_again(shards: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    read = indexed_shards(monkeypatch)
    before = build_index(shards).manifests
    assert read == ["a.tar", "b.tar", "c.tar"]
    report = build_index(shards)
    assert (read[3:], report.num_indexed, report.num_skipped, report.manifests) == ([], 0, 3, before)
    build_index(shards, rebuild=True)
    assert read[3:] == ["a.tar", "b.tar", "c.tar"]


def test_a_stopped_run_goes_on_where_it_was(shards: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = index_build.index_shard

    def stop_at_c(path: str, *, name: str) -> ShardIndex:
        if name == "c.tar":
            raise KeyboardInterrupt
        return real(path, name=name)

    monkeypatch.setattr(index_build, "index_shard", stop_at_c)
    with pytest.raises(KeyboardInterrupt):
        build_index(shards)
    assert files(shards / ".packloom") == ["a.tar.index", "b.tar.index"]
    monkeypatch.undo()
    read = indexed_shards(monkeypatch)
    assert (build_index(shards).num_samples, read) == (8, ["c.tar"])


def test_changed_touched_and_damaged_are_indexed_again(
    shards: Path, make_shard: MakeShard, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = build_index(shards).manifests[str(shards)].fingerprint
    os.utime(shards / "a.tar", ns=(1, 1))
    (shards / ".packloom" / "b.tar.index").write_bytes(b"damaged")
    read = indexed_shards(monkeypatch)
    assert build_index(shards).manifests[str(shards)].fingerprint == before
    assert read == ["a.tar", "b.tar"]
    make_shard(shards / "c.tar", [("c/new.json", b"{}")])
    assert build_index(shards).manifests[str(shards)].fingerprint != before
    assert read[2:] == ["c.tar"]


def test_shards_that_came_and_went(shards: Path, make_shard: MakeShard) -> None:
    build_index(shards)
    (shards / "a.tar").unlink()
    make_shard(shards / "d.tar", [("d.json", b"{}")])
    with pytest.raises(ShardError, match=r"1 shard.*d\.tar, have no index: run `packloom index"):
        open_dataset(shards)
    assert [entry.name for entry in build_index(shards).manifests[str(shards)].shards] == ["b.tar", "c.tar", "d.tar"]
    assert len(open_dataset(shards)) == 5


def test_one_shard_more_is_added_to_the_manifest(shards: Path) -> None:
    build_index(shards / "b.tar")
    assert len(open_dataset(shards / "b.tar")) == 1
    with pytest.raises(ShardError, match=r"2 shard.*a\.tar, have no index"):
        open_dataset(shards)
    build_index(str(shards / "{a,c}.tar"))
    assert len(open_dataset(shards)) == 8


def test_damage_stops_nothing_and_is_reported(shards: Path, make_shard: MakeShard) -> None:
    content = (shards / "a.tar").read_bytes()
    (shards / "a.tar").write_bytes(content[: len(content) // 2])
    (shards / "empty.tar").write_bytes(b"")
    (shards / "gone.tar").symlink_to(shards / "nowhere")
    report = build_index(shards)
    codes = [(Path(shard).name, fault.code) for shard, fault in report.faults]
    assert codes == [("a.tar", "read.truncated"), ("empty.tar", "read.not_tar")]
    assert [(Path(shard).name, reason) for shard, reason in report.failures] == [
        ("gone.tar", "cannot be read: No such file or directory")
    ]
    assert 4 < report.num_samples < 8
    again = build_index(shards)  # what was found before is told again
    assert [(shard, fault.code) for shard, fault in again.faults] == [(s, f.code) for s, f in report.faults]
    with pytest.raises(ShardError, match=r"gone\.tar, have no index"):
        open_dataset(shards)
    (shards / "gone.tar").unlink()
    dataset = open_dataset(shards)
    assert (len(dataset), dataset.num_faults) == (report.num_samples, 2)
    assert [fault.code for _, fault in dataset.faults()] == ["read.truncated", "read.not_tar"]


def test_the_fingerprint_is_of_the_content(shards: Path, tmp_path: Path) -> None:
    here = build_index(shards).manifests[str(shards)].fingerprint
    copy = tmp_path / "elsewhere"
    for number, name in enumerate(("a.tar", "b.tar", "c.tar")):
        copy.mkdir(exist_ok=True)
        shutil.copy(shards / name, copy / f"other-{number}.tar")
    assert build_index(copy).manifests[str(copy)].fingerprint == here == open_dataset(copy).fingerprint
    (copy / "other-0.tar").rename(copy / "x.tar")  # another order is another dataset
    assert build_index(copy).manifests[str(copy)].fingerprint != here


def test_the_index_may_lie_elsewhere(shards: Path, tmp_path: Path) -> None:
    build_index(shards, index_dir=tmp_path / "index")
    assert files(tmp_path / "index") == ["a.tar.index", "b.tar.index", "c.tar.index", "manifest.json"]
    assert files(shards) == ["a.tar", "b.tar", "c.tar"]
    assert len(open_dataset(shards, index_dir=tmp_path / "index")) == 8
    with pytest.raises(ShardError, match=r"has no index in .*\.packloom: run `packloom index"):
        open_dataset(shards)
    with pytest.raises(ConfigError, match="2 are named"):
        build_index([shards, tmp_path], index_dir=tmp_path / "index")


def test_two_processes_give_the_same_index(shards: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(index_build, "START_METHOD", "fork")  # a spawned worker takes seconds to import torch
    build_index(shards, index_dir=tmp_path / "one")
    build_index(shards, index_dir=tmp_path / "two", num_workers=2)
    for name in files(tmp_path / "one"):
        assert (tmp_path / "one" / name).read_bytes() == (tmp_path / "two" / name).read_bytes()


def test_what_cannot_be_indexed_is_named(tmp_path: Path) -> None:
    with pytest.raises(ShardError, match=r"holds no \.tar shards"):
        build_index(tmp_path)
    with pytest.raises(ShardError, match="missing does not exist"):
        build_index(tmp_path / "missing")
    (tmp_path / "x.zip").touch()
    with pytest.raises(ShardError, match=r"is no folder and no \.tar shard"):
        build_index(tmp_path / "x.zip")
    with pytest.raises(ShardError, match="the dataset path is empty"):
        build_index([])
    with pytest.raises(ConfigError, match="num_workers must not be negative, got -1"):
        build_index(tmp_path, num_workers=-1)
    for path in (
        "pipe:cat x.tar",
        "-",
        "simplecache::s3://x/y.tar",
        "ssh://host/x",
        "reference://x",
        "${HOME}/{a,b}.tar",
    ):
        with pytest.raises(ShardError):
            build_index(path)


def test_a_folder_that_cannot_be_written_names_the_way_out(shards: Path, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ShardError, match="index_dir"):
        build_index(shards, index_dir=tmp_path / "file")


def test_the_writer_writes_the_index_that_build_index_would(tmp_path: Path) -> None:
    rows = [{"__key__": f"{n}", "json": {"n": n}, "txt": "x" * n} for n in range(5)]
    write_shards(rows, tmp_path, samples_per_shard=2)
    names = ["shard-000000.tar.index", "shard-000001.tar.index", "shard-000002.tar.index", "manifest.json"]
    assert files(tmp_path / ".packloom") == sorted(names)
    written = {name: (tmp_path / ".packloom" / name).read_bytes() for name in names}
    assert build_index(tmp_path).num_skipped == 3
    build_index(tmp_path, rebuild=True)
    assert {name: (tmp_path / ".packloom" / name).read_bytes() for name in names} == written
    assert [json.loads(sample["json"])["n"] for sample in open_dataset(tmp_path)] == [0, 1, 2, 3, 4]


def test_the_writer_replaces_the_old_index_with_the_old_shards(tmp_path: Path) -> None:
    rows = [{"__key__": f"{n}", "txt": "x" * n} for n in range(5)]
    write_shards(rows, tmp_path, samples_per_shard=1)
    with pytest.raises(SampleError):
        write_shards([*rows, rows[0]], tmp_path, overwrite=True)
    assert len(open_dataset(tmp_path)) == 5
    write_shards(reversed(rows), tmp_path, samples_per_shard=3, overwrite=True)
    assert files(tmp_path) == [
        ".packloom/manifest.json", ".packloom/shard-000000.tar.index", ".packloom/shard-000001.tar.index",
        "shard-000000.tar", "shard-000001.tar",
    ]  # fmt: skip
    assert [sample["__key__"] for sample in open_dataset(tmp_path)] == ["4", "3", "2", "1", "0"]


def test_after_an_error_the_writer_leaves_no_manifest_and_no_remains(tmp_path: Path) -> None:
    rows = [{"__key__": f"{n}", "txt": "x"} for n in (0, 1, 2, 0)]
    with pytest.raises(SampleError):
        write_shards(rows, tmp_path, samples_per_shard=2)
    assert files(tmp_path) == [".packloom/shard-000000.tar.index", "shard-000000.tar"]
    with pytest.raises(ShardError, match="has no index"):
        open_dataset(tmp_path)
    assert build_index(tmp_path).num_skipped == 1
