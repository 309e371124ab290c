"""open_dataset and ShardDataset: the same samples as read_shard, from any position, and one typed error per bad one."""

from __future__ import annotations

import gc
import os
import pickle
import shutil
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch.utils.data import DataLoader

from packloom.datasets import ShardDataset, build_index, expand_paths, open_dataset, read_shard, write_shards
from packloom.errors import ReadError, ShardError
from packloom.types import RawSample


@pytest.fixture
def folder(shards: Path) -> Path:
    build_index(shards)
    return shards


def streamed(path: Path) -> list[RawSample]:
    return [sample for shard in expand_paths(path) for sample in read_shard(shard)]


def overwrite(path: Path, old: bytes, new: bytes) -> None:
    """Change bytes in place and keep the file's time, as a failing disk would."""
    status = path.stat()
    content = path.read_bytes()
    assert content.count(old) == 1
    assert len(old) == len(new)
    path.write_bytes(content.replace(old, new))
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))


def test_samples_are_those_of_read_shard(folder: Path) -> None:
    dataset = open_dataset(folder)
    expected = streamed(folder)
    assert len(dataset) == len(expected) == 8
    assert list(dataset) == expected
    assert [list(sample) for sample in dataset] == [list(sample) for sample in expected]  # the order of parts too
    assert [dataset[position] for position in (7, 0, 4, 3, 4)] == [expected[n] for n in (7, 0, 4, 3, 4)]
    assert dataset[-1] == expected[7]
    assert dataset.read_many([6, 1, 1]) == [expected[6], expected[1], expected[1]]
    assert dataset.read(2, 1) == expected[6]


names = st.sampled_from(["a", "b", "d/a", "v1.0/b", "__meta__/x", "é" * 60])
parts = st.sampled_from([".json", ".JSON", ".0.jpg", ".txt", "", "."])


@settings(deadline=None, max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    members=st.lists(st.tuples(names, parts, st.binary(max_size=700)), min_size=1, max_size=8), cut=st.integers(0, 40)
)
def test_good_samples_and_faults_are_those_of_read_shard(
    tmp_path_factory: pytest.TempPathFactory, make_shard: Callable[..., str], members: list[Any], cut: int
) -> None:
    folder = tmp_path_factory.mktemp("random")
    path = Path(make_shard(folder / "s.tar", [(name + part, data) for name, part, data in members]))
    path.write_bytes(path.read_bytes()[: cut * 300 or None])  # cut off anywhere, or whole
    build_index(folder)
    dataset = open_dataset(folder)
    items = list(read_shard(str(path)))
    assert list(dataset) == [item for item in items if not isinstance(item, ReadError)]
    codes = [item.code for item in items if isinstance(item, ReadError)]
    assert [fault.code for _, fault in dataset.faults()] == codes


def test_positions_and_names(folder: Path) -> None:
    dataset = open_dataset(folder)
    places = [(0, 0), (0, 1), (0, 2), (0, 3), (1, 0), (2, 0), (2, 1), (2, 2)]
    assert [dataset.locate(position) for position in range(8)] == places
    assert [dataset.position(*place) for place in places] == list(range(8))
    assert [dataset.key(*place) for place in places] == [sample["__key__"] for sample in streamed(folder)]
    assert dataset.part_names(0, 1) == ("json", "0.jpg", "txt")
    assert dataset.image_size(0, 1, "0.jpg") == (31, 20)
    assert dataset.image_size(0, 1, "json") is None
    assert dataset.image_size(0, 1, "missing") is None
    np.testing.assert_array_equal(dataset.shard_lengths, [4, 1, 3])
    assert dataset.shard_path(1) == str(folder / "b.tar")
    for bad in (8, -9):
        with pytest.raises(IndexError, match="position"):
            dataset[bad]
    for shard, index in ((3, 0), (-1, 0), (1, 1), (1, -1)):
        with pytest.raises(IndexError):
            dataset.read(shard, index)


def test_some_parts_of_a_sample(folder: Path) -> None:
    dataset = open_dataset(folder)
    whole = dataset[1]
    assert dataset.read(0, 1, parts=("json",)) == {name: whole[name] for name in ("__key__", "__url__", "json")}
    assert dataset.read(0, 1, parts=["txt", "0.jpg"]) == {name: whole[name] for name in whole if name != "json"}
    with pytest.raises(ReadError, match=r"'a/0'.*no part 'txt', only json, 0\.jpg") as caught:
        dataset.read(0, 0, parts=("json", "txt"))
    assert caught.value.code == "read.missing_part"
    found = dataset.read_many([0, 1], parts=("txt",))
    assert (found[0].code, found[1]["txt"]) == ("read.missing_part", b"")


def test_only_what_is_asked_for_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_shards([{"__key__": "k", "json": b"{}", "0.jpg": b"x" * 100_000, "1.jpg": b"y" * 50}], tmp_path)
    dataset = open_dataset(tmp_path)
    read: list[tuple[int, int]] = []
    real = os.pread

    def spy(number: int, size: int, offset: int) -> bytes:
        read.append((offset, size))
        return real(number, size, offset)

    monkeypatch.setattr(os, "pread", spy)
    dataset.read(0, 0, parts=("json", "1.jpg"))
    assert read == [(512, 2), (102_400, 50)]
    read.clear()
    dataset[0]
    assert read == [(512, 102_450 - 512)]


def test_damaged_bytes_are_a_read_error_with_the_key(folder: Path) -> None:
    overwrite(folder / "c.tar", b'{"n": 1, "shard": "c.tar"}', b'{"n": 7, "shard": "c.tar"}')
    dataset = open_dataset(folder)
    with pytest.raises(ReadError, match=r"'c/1'.*'json' in shard .*c\.tar are not those that were indexed") as caught:
        dataset[6]
    assert (caught.value.key, caught.value.code) == ("c/1", "read.checksum")
    assert "packloom index" in caught.value.hint
    good, bad = dataset.read_many([5, 6])
    assert (good["__key__"], bad.code) == ("c/0", "read.checksum")
    assert open_dataset(folder, verify=False)[6]["json"] == b'{"n": 7, "shard": "c.tar"}'
    assert dataset.read(2, 1, parts=("0.jpg",))["__key__"] == "c/1"  # the other part is whole


def test_a_shard_of_another_size_is_stale(folder: Path) -> None:
    with (folder / "a.tar").open("ab") as file:
        file.write(bytes(512))
    dataset = open_dataset(folder)
    assert dataset[4]["__key__"] == "b/0"
    with pytest.raises(
        ShardError, match=r"a\.tar is not what was indexed: it has \d+ bytes, and had \d+.*packloom index"
    ):
        dataset[0]


def test_a_shard_of_another_time_is_a_copy_or_stale(folder: Path, tmp_path: Path) -> None:
    shutil.copytree(folder, tmp_path / "copy", copy_function=shutil.copyfile)  # new times
    assert list(open_dataset(tmp_path / "copy")) == streamed(tmp_path / "copy")
    content = (folder / "b.tar").read_bytes()
    (folder / "b.tar").write_bytes(content.replace(b'"n": 0', b'"n": 1'))
    os.utime(folder / "b.tar", ns=(7, 7))
    with pytest.raises(
        ShardError, match=r"b\.tar is not what was indexed: its time has changed and so has its content"
    ):
        open_dataset(folder, verify=False)[4]
    with pytest.raises(ReadError, match="those that were indexed"):  # each part that is read is checked
        open_dataset(folder)[4]


def test_a_shard_that_was_cut_off_loses_what_is_missing(folder: Path) -> None:
    content = (folder / "a.tar").read_bytes()
    (folder / "a.tar").write_bytes(content[: len(content) // 2])
    dataset = open_dataset(folder)
    outcomes = [getattr(item, "code", "good") for item in dataset.read_many(range(8))]
    assert outcomes[0] == "good"
    assert outcomes[3] == "read.truncated"
    assert outcomes[4:] == ["good"] * 4
    with pytest.raises(ShardError, match="is not what was indexed: it has"):
        open_dataset(folder, verify=False)[0]


def test_an_index_that_belongs_to_another_shard_is_refused(folder: Path) -> None:
    shutil.copy(folder / ".packloom" / "a.tar.index", folder / ".packloom" / "b.tar.index")
    shutil.copy(folder / "a.tar", folder / "b.tar")
    with pytest.raises(ShardError, match="describe different shards: run `packloom index"):
        open_dataset(folder)[4]


def test_shards_that_are_gone(folder: Path) -> None:
    (folder / "c.tar").rename(folder / "c.bak")
    with pytest.raises(ShardError, match=r"1 indexed shard.*c\.tar, are no longer in"):
        open_dataset(folder)
    with pytest.raises(ShardError, match=r"c\.tar does not exist"):
        open_dataset(folder / "c.tar")
    dataset = open_dataset([folder / "a.tar", folder / "b.tar"])
    (folder / "a.tar").unlink()
    with pytest.raises(ReadError) as caught:  # for the error policy to count: the other shards are readable
        dataset[0]
    assert caught.value.code == "read.open"
    assert dataset.read_many([0, 4])[1]["__key__"] == "b/0"


def test_a_part_over_the_limit_is_refused_before_it_is_read(folder: Path) -> None:
    dataset = open_dataset(folder, max_member_bytes=100)
    with pytest.raises(ReadError, match=r"'0\.jpg' has \d+ bytes, over the limit of 100") as caught:
        dataset[0]
    assert caught.value.code == "read.member_too_large"
    assert dataset.read(0, 0, parts=("json",))["__key__"] == "a/0"


def test_lists_patterns_and_their_fingerprints(folder: Path, tmp_path: Path) -> None:
    write_shards([{"__key__": "other", "txt": "x"}], tmp_path / "other")
    both = open_dataset([folder, tmp_path / "other"])
    assert [sample["__key__"] for sample in both][-2:] == [streamed(folder)[-1]["__key__"], "other"]
    assert both.locate(8) == (3, 0)
    some = open_dataset(str(folder / "{c,a}.tar"))
    assert [some.key(shard, 0) for shard in range(2)] == ["c/0", "a/0"]
    whole, listed = open_dataset(folder), open_dataset([str(folder / f"{name}.tar") for name in "abc"])
    assert whole.fingerprint == listed.fingerprint
    reversed_both = open_dataset([tmp_path / "other", folder])
    assert len({d.fingerprint for d in (both, some, whole, reversed_both)}) == 4
    with pytest.raises(ShardError, match="wildcards are not expanded"):
        open_dataset(str(folder / "*.tar"))
    with pytest.raises(ShardError, match="listed twice"):
        open_dataset([folder, folder / "a.tar"])


def test_memory_of_indexes_is_bounded(folder: Path) -> None:
    dataset = open_dataset(folder, index_cache_bytes=1)
    assert list(dataset) == streamed(folder)
    assert len(dataset._open) == 1
    dataset = open_dataset(folder)
    assert list(dataset) == streamed(folder)
    assert len(dataset._open) == 3


def test_open_files_are_bounded_and_closed(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("packloom.datasets.files.MAX_OPEN_FILES", 2)

    def open_shards() -> int:
        links = [Path("/proc/self/fd", name) for name in os.listdir("/proc/self/fd")]
        return sum(os.readlink(link).startswith(str(folder)) for link in links if os.path.lexists(link))

    dataset = open_dataset(folder)
    for _ in range(3):
        assert list(dataset) == streamed(folder)
    assert open_shards() == 2
    del dataset
    gc.collect()
    assert open_shards() == 0


def test_workers_forked_and_unpickled_read_the_same(folder: Path) -> None:
    dataset = open_dataset(folder)
    expected = streamed(folder)
    assert dataset[0] == expected[0]  # a file is open, an index loaded
    copy = pickle.loads(pickle.dumps(dataset))
    assert isinstance(copy, ShardDataset)
    assert (list(copy), copy.fingerprint) == (expected, dataset.fingerprint)
    loader = DataLoader(dataset, batch_size=None, num_workers=2, multiprocessing_context="fork")
    assert list(loader) == expected


def test_threads_may_share_a_dataset(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("packloom.datasets.files.MAX_OPEN_FILES", 1)
    dataset = open_dataset(folder, index_cache_bytes=1)
    expected = streamed(folder)
    wrong: list[int] = []

    def read(first: int) -> None:
        for step in range(400):
            position = (first + step * 3) % 8
            if dataset[position] != expected[position]:
                wrong.append(position)

    threads = [threading.Thread(target=read, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


def test_a_key_is_never_a_path(tmp_path: Path, make_shard: Callable[..., str]) -> None:
    members = [("../../etc/evil.json", b"{}"), ("/etc/passwd.txt", b"x"), ("a\\..\\b/0.txt", b"x"), ("./a/0.txt", b"x")]
    make_shard(tmp_path / "s.tar", members)
    build_index(tmp_path)
    dataset = open_dataset(tmp_path)
    assert [(fault.key, fault.code) for _, fault in dataset.faults()] == [
        (key, "read.unsafe_key") for key in ("../../etc/evil", "/etc/passwd", "a\\..\\b/0")
    ]
    assert dataset.keys(0) == ["./a/0"]
    assert sorted(path.name for path in tmp_path.rglob("*")) == [".packloom", "manifest.json", "s.tar", "s.tar.index"]
