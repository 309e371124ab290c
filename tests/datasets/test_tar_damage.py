"""Damaged headers: reading goes on behind them, and only samples that may be incomplete are lost, each by its name."""

from __future__ import annotations

import io
import random
import tarfile
from pathlib import Path

import pytest

from packloom.datasets import build_index, open_dataset, read_shard
from packloom.errors import ReadError

BLOCK = 512


def make(path: Path, members: list[tuple[str, bytes]], format: int = tarfile.USTAR_FORMAT) -> bytearray:
    with tarfile.open(path, "w", format=format) as tar:
        for name, data in members:
            info = tarfile.TarInfo(name)
            info.size = len(data)
            tar.addfile(info, io.BytesIO(data))
    return bytearray(path.read_bytes())


def outcome(path: Path, content: bytes) -> list[tuple[str, str]]:
    path.write_bytes(content)
    return [
        (item.key.replace(str(path), "PATH"), item.code) if isinstance(item, ReadError) else (item["__key__"], "ok")
        for item in read_shard(str(path))
    ]


def alike(count: int) -> list[tuple[str, bytes]]:
    """Samples of one kind, 5 blocks each: .json has a header and one block, .jpg a header and two."""
    return [(f"{n}.{part}", b"x" * size) for n in range(count) for part, size in (("json", 100), ("jpg", 700))]


@pytest.mark.parametrize(
    ("blocks", "expected"),
    [
        ([0], {0}),  # the first header of all
        ([2], {0}),
        ([5], {1}),
        ([7], {1}),
        ([5, 7], {1}),  # both of one sample: which it was is not known
        ([7, 10], {1, 2}),
        ([7, 12], {1, 2}),
        ([22], {4}),
        ([2, 10, 22], {0, 2, 4}),
    ],
)
@pytest.mark.parametrize("fill", [b"\0", b"\xff"])
def test_where_samples_are_alike_only_the_damaged_ones_are_lost(
    tmp_path: Path, blocks: list[int], expected: set[int], fill: bytes
) -> None:
    content = make(tmp_path / "s.tar", alike(6))
    for block in blocks:
        content[block * BLOCK : (block + 1) * BLOCK] = fill * BLOCK
    found = outcome(tmp_path / "s.tar", bytes(content))
    assert [key for key, code in found if code == "ok"] == [str(n) for n in range(6) if n not in expected]
    lost = [key for key, code in found if code != "ok"]
    assert lost == (["PATH"] if blocks == [5, 7] else [str(n) for n in sorted(expected)])


def test_where_samples_differ_both_neighbours_are_lost(tmp_path: Path) -> None:
    members = [("a.json", b"1"), ("b.json", b"2"), ("b.jpg", b"3"), ("c.json", b"4"), ("d.txt", b"5")]
    content = make(tmp_path / "s.tar", members)
    content[4 * BLOCK] ^= 1  # the name in the header of b.jpg
    assert outcome(tmp_path / "s.tar", bytes(content)) == [
        ("a", "ok"), ("b", "read.header"), ("c", "read.header"), ("d", "ok")
    ]  # fmt: skip


def test_a_long_name_that_lost_its_header_makes_no_half_sample(tmp_path: Path) -> None:
    key = "d/" * 60 + "k"
    members = [("a.json", b"1"), (f"{key}.json", b"2"), (f"{key}.jpg", b"3"), ("b.json", b"4"), ("c.json", b"5")]
    for format in (tarfile.PAX_FORMAT, tarfile.GNU_FORMAT):
        content = make(tmp_path / "s.tar", members, format)
        content[2 * BLOCK + 150] ^= 1  # the header of the long name of the second member
        found = outcome(tmp_path / "s.tar", bytes(content))
        assert (key, "read.header") in found
        assert [name for name, code in found if code == "ok"] in (["c"], ["a", "c"])


def test_both_sides_of_one_sample_are_one_fault(tmp_path: Path) -> None:
    members = [("a.json", b"1"), ("b.json", b"2"), ("b.jpg", b"3"), ("b.txt", b"4"), ("c.json", b"5")]
    content = make(tmp_path / "s.tar", members)
    content[4 * BLOCK] ^= 1
    assert outcome(tmp_path / "s.tar", bytes(content)) == [("a", "ok"), ("b", "read.header"), ("c", "ok")]


def test_random_damage_to_headers(tmp_path: Path) -> None:
    """Samples that keep all headers arrive; of the others none does, and each damaged place is reported."""
    path, rng = tmp_path / "s.tar", random.Random(0)
    whole = make(path, alike(40))
    with tarfile.open(path) as tar:
        headers = [(member.name.split(".")[0], member.offset) for member in tar]
    for _ in range(60):
        content = bytearray(whole)
        hit = rng.sample(headers, rng.randint(1, 8))
        for _, offset in hit:
            start, size = offset + rng.randrange(250), rng.randrange(1, 150)
            content[start : start + size] = rng.randbytes(size)
        changed = {key for key, offset in headers if content[offset : offset + BLOCK] != whole[offset : offset + BLOCK]}
        found = outcome(path, bytes(content))
        good = {key for key, code in found if code == "ok"}
        assert len(good) == sum(code == "ok" for _, code in found)
        assert not good & changed
        lost = {str(n) for n in range(40)} - good
        wholly = {key for key in changed if sum(name == key for name, _ in hit) == 2}
        assert lost <= changed | {key for key, code in found if code != "ok"}
        assert changed - wholly <= {key for key, code in found if code != "ok"}


def test_the_index_has_what_a_reader_finds(tmp_path: Path) -> None:
    content = make(tmp_path / "s.tar", alike(6))
    content[7 * BLOCK : 8 * BLOCK] = bytes(BLOCK)
    (tmp_path / "s.tar").write_bytes(bytes(content))
    build_index(tmp_path)
    dataset = open_dataset(tmp_path)
    assert [sample["__key__"] for sample in dataset] == ["0", "2", "3", "4", "5"]
    [(_, fault)] = dataset.faults()
    assert (fault.key, fault.code, fault.offset) == ("1", "read.trailing_data", 7 * BLOCK)
