"""write_shards: what it writes plain webdataset reads back; what could not be read back is refused."""

from __future__ import annotations

import json
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import webdataset

from packloom.datasets import read_shard, write_shards
from packloom.errors import ConfigError, SampleError, ShardError


def rows(count: int, size: int = 3) -> list[dict[str, Any]]:
    return [{"__key__": f"a/{n:03d}", "0.jpg": bytes([n]) * size, "json": {"n": n, "text": "né"}} for n in range(count)]


def listing(folder: Path) -> list[str]:
    """The names in a folder but for the index, whose own tests are elsewhere."""
    return sorted(path.name for path in folder.iterdir() if path.name != ".packloom")


def names(path: Path) -> list[str]:
    with tarfile.open(path) as tar:
        return tar.getnames()


def test_plain_webdataset_reads_the_same_samples(tmp_path: Path) -> None:
    shards = write_shards(rows(5), tmp_path, samples_per_shard=2)
    assert [path.name for path in shards] == ["shard-000000.tar", "shard-000001.tar", "shard-000002.tar"]
    read = list(webdataset.WebDataset([str(path) for path in shards], shardshuffle=False))
    assert [(s["__key__"], s["0.jpg"]) for s in read] == [(f"a/{n:03d}", bytes([n]) * 3) for n in range(5)]
    assert read[4]["json"] == '{"n": 4, "text": "né"}'.encode()


def test_json_stands_first_then_the_parts_by_name(tmp_path: Path) -> None:
    sample = {"__key__": "k", "1.png": b"b", "txt": "über", "0.JPG": b"a", "json": b"{}", "__url__": "a note"}
    [shard] = write_shards([sample], tmp_path)
    assert names(shard) == ["k.json", "k.0.jpg", "k.1.png", "k.txt"]
    [back] = read_shard(str(shard))
    assert back == {
        "__key__": "k", "__url__": str(shard), "json": b"{}", "0.jpg": b"a", "1.png": b"b", "txt": "über".encode()
    }  # fmt: skip


def test_equal_samples_give_equal_bytes_whatever_the_order_of_their_parts(tmp_path: Path) -> None:
    first = write_shards(rows(3), tmp_path / "a")
    second = write_shards([dict(reversed(row.items())) for row in rows(3)], tmp_path / "b")
    assert first[0].read_bytes() == second[0].read_bytes()
    with tarfile.open(first[0]) as tar:
        assert {(m.mtime, m.uid, m.gid, m.uname, m.gname, m.mode) for m in tar} == {(0, 0, 0, "", "", 0o644)}


def test_json_keeps_the_order_of_its_keys(tmp_path: Path) -> None:
    [shard] = write_shards([{"__key__": "k", "json": {"b": 1, "a": {"z": 2, "y": 3}}}], tmp_path)
    [back] = read_shard(str(shard))
    assert list(json.loads(back["json"])) == ["b", "a"]
    assert list(json.loads(back["json"])["a"]) == ["z", "y"]


@pytest.mark.parametrize("long_name", [False, True])
def test_no_shard_is_larger_than_the_byte_limit(tmp_path: Path, long_name: bool) -> None:
    samples = [{**row, "__key__": ("ä" * 200 if long_name else "") + row["__key__"]} for row in rows(40, size=3000)]
    shards = write_shards(samples, tmp_path, max_shard_bytes=40_960)
    assert len(shards) > 3
    assert max(path.stat().st_size for path in shards) == 40_960
    assert sum(len(list(read_shard(str(path)))) for path in shards) == 40


def test_a_sample_over_the_byte_limit_gets_its_own_shard(tmp_path: Path) -> None:
    samples = [{"__key__": key, "txt": b"x" * size} for key, size in (("a", 1), ("b", 50_000), ("c", 1))]
    shards = write_shards(samples, tmp_path, max_shard_bytes=20_480)
    assert [names(path) for path in shards] == [["a.txt"], ["b.txt"], ["c.txt"]]


@pytest.mark.parametrize(
    ("sample", "code"),
    [
        ({"json": b"{}"}, "write.key"),
        ({"__key__": "", "json": b"{}"}, "write.key"),
        ({"__key__": 7, "json": b"{}"}, "write.key"),
        ({"__key__": "img.001", "json": b"{}"}, "write.key"),
        ({"__key__": "/etc/x", "json": b"{}"}, "write.key"),
        ({"__key__": "a/../x", "json": b"{}"}, "write.key"),
        ({"__key__": "./x", "json": b"{}"}, "write.key"),
        ({"__key__": "a/", "json": b"{}"}, "write.key"),
        ({"__key__": "a\\b", "json": b"{}"}, "write.key"),
        ({"__key__": "__x", "json": b"{}"}, "write.key"),
        ({"__key__": "a\nb", "json": b"{}"}, "write.key"),
        ({"__key__": "a\ud800", "json": b"{}"}, "write.key"),
        ({"__key__": "k"}, "write.no_parts"),
        ({"__key__": "k", "": b"x"}, "write.part_name"),
        ({"__key__": "k", ".jpg": b"x"}, "write.part_name"),
        ({"__key__": "k", "0.": b"x"}, "write.part_name"),
        ({"__key__": "k", "a/b.jpg": b"x"}, "write.part_name"),
        ({"__key__": "k", "_hidden": b"x"}, "write.part_name"),
        ({"__key__": "k", 3: b"x"}, "write.part_name"),
        ({"__key__": "k", "0.jpg": b"x", "0.JPG": b"y"}, "write.case_collision"),
        ({"__key__": "k", "json": None}, "write.part_value"),
        ({"__key__": "k", "json": {"x": {1}}}, "write.part_value"),
        ({"__key__": "k", "json": {"x": float("nan")}}, "write.part_value"),
        ({"__key__": "k", "json": {"x": "\ud800"}}, "write.part_value"),
        ({"__key__": "k", "txt": {"x": 1}}, "write.part_value"),
    ],
)
def test_what_could_not_be_read_back_is_refused(tmp_path: Path, sample: dict[Any, Any], code: str) -> None:
    with pytest.raises(SampleError) as caught:
        write_shards([sample], tmp_path)
    assert caught.value.code == code
    assert caught.value.key == (sample["__key__"] if "key" not in code else caught.value.key)
    assert list(tmp_path.iterdir()) == []


def test_a_duplicate_key_is_refused_across_shards(tmp_path: Path) -> None:
    with pytest.raises(SampleError, match=r"'a/000'.*already written"):
        write_shards([*rows(3), rows(1)[0]], tmp_path, samples_per_shard=1)


def test_dots_in_folders_of_a_key_are_fine(tmp_path: Path) -> None:
    [shard] = write_shards([{"__key__": "v1.0/k", "0.jpg": b"x"}], tmp_path)
    assert [sample["__key__"] for sample in read_shard(str(shard))] == ["v1.0/k"]


def test_an_error_leaves_whole_shards_only(tmp_path: Path) -> None:
    def broken() -> Iterator[dict[str, Any]]:
        yield from rows(3)
        raise OSError("source went away")

    with pytest.raises(OSError, match="source went away"):
        write_shards(broken(), tmp_path, samples_per_shard=2)
    assert listing(tmp_path) == ["shard-000000.tar"]
    assert len(list(read_shard(str(tmp_path / "shard-000000.tar")))) == 2


def test_an_existing_set_is_kept_unless_overwritten(tmp_path: Path) -> None:
    write_shards(rows(4), tmp_path, samples_per_shard=1)
    with pytest.raises(ShardError, match=r"already holds 4 shard.*overwrite=True"):
        write_shards(rows(1), tmp_path)
    assert len(listing(tmp_path)) == 4
    assert write_shards(rows(2), tmp_path, overwrite=True) == [tmp_path / "shard-000000.tar"]
    assert listing(tmp_path) == ["shard-000000.tar"]


def test_a_set_can_be_rewritten_from_itself(tmp_path: Path) -> None:
    old = write_shards(rows(5), tmp_path, samples_per_shard=1)
    source = (sample for path in old for sample in read_shard(str(path)))
    [new] = write_shards(source, tmp_path, overwrite=True)
    assert [sample["__key__"] for sample in read_shard(str(new))] == [f"a/{n:03d}" for n in range(5)]


def test_a_failed_overwrite_keeps_the_old_set(tmp_path: Path) -> None:
    write_shards(rows(2), tmp_path, samples_per_shard=1)
    with pytest.raises(SampleError):
        write_shards([*rows(5), {"__key__": "x.y", "json": b""}], tmp_path, samples_per_shard=2, overwrite=True)
    assert listing(tmp_path) == ["shard-000000.tar", "shard-000001.tar"]
    assert len(list(read_shard(str(tmp_path / "shard-000000.tar")))) == 1


def test_foreign_tars_and_what_a_killed_run_left(tmp_path: Path) -> None:
    (tmp_path / ".shard-000009.tar.partial").write_bytes(b"half")
    write_shards(rows(1), tmp_path)
    assert listing(tmp_path) == ["shard-000000.tar"]
    (tmp_path / "train.tar").write_bytes(b"x")
    with pytest.raises(ShardError, match=r"train\.tar"):
        write_shards(rows(1), tmp_path, overwrite=True)


def test_no_samples_a_file_for_a_folder_and_limits_below_one(tmp_path: Path) -> None:
    with pytest.raises(ShardError, match="no samples"):
        write_shards([], tmp_path)
    (tmp_path / "file").write_text("")
    with pytest.raises(ShardError, match="is a file"):
        write_shards(rows(1), tmp_path / "file")
    with pytest.raises(ConfigError, match="samples_per_shard must be at least 1, got 0"):
        write_shards(rows(1), tmp_path, samples_per_shard=0)
