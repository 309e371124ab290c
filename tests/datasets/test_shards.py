"""expand_paths and read_shard: the same samples as plain webdataset, and one typed error per damaged one."""

from __future__ import annotations

import gzip
import io
import os
import random
import tarfile
from pathlib import Path
from typing import Any

import pytest
from webdataset import tariterators

from packloom.datasets import expand_paths, read_shard, write_shards
from packloom.datasets.tar_walk import ShardFile
from packloom.errors import ReadError, ShardError


def make_tar(path: Path, members: list[tuple[str, bytes]], format: int = tarfile.PAX_FORMAT) -> str:
    with tarfile.open(path, "w", format=format) as tar:
        for name, data in members:
            info = tarfile.TarInfo(name)
            info.size = len(data)
            tar.addfile(info, io.BytesIO(data))
    return str(path)


def outcome(path: str, **settings: Any) -> list[tuple[str, str]]:
    """(key, "ok" or the error's code) of each item."""
    return [
        (item.key, item.code) if isinstance(item, ReadError) else (item["__key__"], "ok")
        for item in read_shard(path, **settings)
    ]


def three(tmp_path: Path) -> bytes:
    """A shard of samples 0, 1, 2, each with members .json (1 block) and .jpg (2 blocks): 5 blocks of 512 a sample."""
    members = [
        (f"{n}.{part}", bytes([65 + n]) * size) for n in range(3) for part, size in (("json", 100), ("jpg", 700))
    ]
    return Path(make_tar(tmp_path / "three.tar", members)).read_bytes()


def damaged(tmp_path: Path, content: bytes) -> str:
    path = tmp_path / "damaged.tar"
    path.write_bytes(content)
    return str(path)


@pytest.mark.parametrize("format", [tarfile.PAX_FORMAT, tarfile.GNU_FORMAT])
def test_same_samples_as_plain_webdataset(tmp_path: Path, format: int) -> None:
    members = [("__meta__/note.json", b"skip"), ("a/0.json", b"{}"), ("a/0.0.JPG", b"jpg"), ("a/0.seg.v1.png", b"")]
    members += [("v1.0/" + "ü" * 150 + ".txt", b"long"), ("b.jpg", b"x" * 2000)]
    path = make_tar(tmp_path / "s.tar", members, format)
    ours = list(read_shard(path))
    assert ours == list(tariterators.tarfile_samples([{"url": path}]))
    assert ours[0] == {"__key__": "a/0", "__url__": path, "json": b"{}", "0.jpg": b"jpg", "seg.v1.png": b""}
    assert [sample["__key__"] for sample in ours] == ["a/0", "v1.0/" + "ü" * 150, "b"]


def test_nothing_is_decoded(tmp_path: Path) -> None:
    path = make_tar(tmp_path / "s.tar", [("a.pyd", b"cos\nsystem\n(S'false'\ntR."), ("a.json", b"not json")])
    assert list(read_shard(path)) == [
        {"__key__": "a", "__url__": path, "pyd": b"cos\nsystem\n(S'false'\ntR.", "json": b"not json"}
    ]


@pytest.mark.parametrize(
    ("cut", "expected"),
    [
        (
            15 * 512,
            [("0", "ok"), ("1", "ok"), ("2", "ok"), ("shard", "read.truncated")],
        ),  # only the end mark is missing
        (13 * 512, [("0", "ok"), ("1", "ok"), ("2", "read.truncated")]),  # in the header of 2.jpg's payload
        (12 * 512, [("0", "ok"), ("1", "ok"), ("2", "read.truncated")]),  # at a member border: 2.jpg is missing
        (12 * 512 + 100, [("0", "ok"), ("1", "ok"), ("2", "read.truncated")]),  # inside a header
        (10 * 512, [("0", "ok"), ("1", "ok"), ("shard", "read.truncated")]),  # at a sample border
        (10 * 512 + 100, [("0", "ok"), ("1", "ok"), ("shard", "read.truncated")]),  # inside the header of 2.json
        (3 * 512 + 100, [("0", "read.truncated")]),  # inside a payload
    ],
)
def test_a_cut_shard_loses_what_is_not_there_only(tmp_path: Path, cut: int, expected: list[tuple[str, str]]) -> None:
    path = damaged(tmp_path, three(tmp_path)[:cut])
    assert outcome(path) == [(path if key == "shard" else key, code) for key, code in expected]
    [error] = [item for item in read_shard(path) if isinstance(item, ReadError)]
    assert path in str(error)
    assert "write the shard again" in str(error)


def test_every_cut_is_noticed(tmp_path: Path) -> None:
    whole = three(tmp_path)
    for cut in range(1, 16 * 512, 97):
        found = outcome(damaged(tmp_path, whole[:cut]))
        assert found[-1][1] in ("read.truncated", "read.not_tar"), cut
        assert all(code == "ok" for _, code in found[:-1]), cut


@pytest.mark.parametrize(("fill", "code"), [(b"\xff", "read.header"), (b"\0", "read.trailing_data")])
def test_a_spoilt_header_is_noticed(tmp_path: Path, fill: bytes, code: str) -> None:
    whole = three(tmp_path)
    spoilt = whole[: 7 * 512] + fill * 512 + whole[8 * 512 :]  # the header of 1.jpg
    assert outcome(damaged(tmp_path, spoilt)) == [("0", "ok"), ("1", code), ("2", "ok")]
    [error] = [item for item in read_shard(damaged(tmp_path, spoilt)) if isinstance(item, ReadError)]
    assert error.offset == 7 * 512
    assert "this sample may be incomplete; reading goes on at byte 5120" in error.reason


def test_random_damage_never_raises_and_never_invents_a_sample(tmp_path: Path) -> None:
    whole, rng = three(tmp_path), random.Random(0)
    for _ in range(300):
        content = bytearray(whole)
        for _ in range(rng.randint(1, 6)):
            content[rng.randrange(15 * 512)] = rng.randrange(256)
        for item in read_shard(damaged(tmp_path, bytes(content))):
            assert isinstance(item, ReadError) or set(item) >= {"__key__", "__url__"}


def test_members_apart_make_one_error_and_no_half_sample(tmp_path: Path) -> None:
    path = make_tar(tmp_path / "s.tar", [("a.json", b"{}"), ("b.json", b"{}"), ("a.jpg", b"x"), ("c.json", b"{}")])
    assert outcome(path) == [("a", "read.not_adjacent"), ("b", "ok"), ("c", "ok")]


def test_members_apart_around_a_cut(tmp_path: Path) -> None:
    whole = Path(make_tar(tmp_path / "s.tar", [("a.json", b"{}"), ("b.json", b"{}"), ("a.jpg", b"x")])).read_bytes()
    assert outcome(damaged(tmp_path, whole[: 6 * 512])) == [
        ("a", "read.not_adjacent"), ("b", "ok"), ("a", "read.truncated")
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("names", "code"),
    [
        (["b.jpg", "b.jpg"], "read.duplicate_member"),
        (["b.jpg", "b.JPG"], "read.case_collision"),
        (["b.__key__"], "read.reserved_name"),
    ],
)
def test_names_that_would_overwrite_each_other(tmp_path: Path, names: list[str], code: str) -> None:
    members = [("a.txt", b"1"), *((name, b"x") for name in names), ("c.txt", b"2")]
    path = make_tar(tmp_path / "s.tar", members)
    assert outcome(path) == [("a", "ok"), ("b", code), ("c", "ok")]


def test_a_link_is_not_a_part(tmp_path: Path) -> None:
    path = tmp_path / "s.tar"
    with tarfile.open(path, "w") as tar:
        folder, link = tarfile.TarInfo("folder.d"), tarfile.TarInfo("a.jpg")
        folder.type, link.type, link.linkname = tarfile.DIRTYPE, tarfile.SYMTYPE, "/etc/passwd"
        tar.addfile(folder)
        tar.addfile(link)
    assert outcome(str(path)) == [("a", "read.special_member")]


def test_a_large_member_is_refused_before_it_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = make_tar(tmp_path / "s.tar", [("a.txt", b"1"), ("b.bin", b"x" * 5000), ("c.txt", b"2")])
    read = []
    original = ShardFile.read
    monkeypatch.setattr(ShardFile, "read", lambda self, size=-1: read.append(size) or original(self, size))
    assert outcome(path, max_member_bytes=4999) == [("a", "ok"), ("b", "read.member_too_large"), ("c", "ok")]
    assert 5000 not in read
    assert outcome(path, max_member_bytes=5000) == [("a", "ok"), ("b", "ok"), ("c", "ok")]
    assert 5000 in read


def test_what_is_no_tar(tmp_path: Path) -> None:
    packed = damaged(tmp_path, gzip.compress(three(tmp_path)))
    assert outcome(packed) == [(packed, "read.compressed")]
    assert "gzip" in str(next(iter(read_shard(packed))))
    assert outcome(damaged(tmp_path, b"<html>404</html>" * 100))[0][1] == "read.not_tar"
    assert outcome(str(tmp_path / "absent.tar")) == [(str(tmp_path / "absent.tar"), "read.open")]


def test_readers_share_a_shard_without_overlap_errors_included(tmp_path: Path) -> None:
    members = [("a.txt", b""), ("b.txt", b""), ("b.TXT", b""), ("c.txt", b""), ("d.txt", b"")]
    whole = Path(make_tar(tmp_path / "s.tar", members)).read_bytes()
    path = damaged(tmp_path, whole[: 5 * 512])
    parts = [outcome(path, first=first, step=3) for first in range(3)]
    assert parts == [[("a", "ok"), ("d", "read.truncated")], [("b", "read.case_collision")], [("c", "ok")]]


def test_members_without_a_part_name_are_named_in_the_log(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = make_tar(tmp_path / "s.tar", [("README", b"x"), ("a.txt", b"1")])
    assert outcome(path) == [("a", "ok")]
    assert "ignored 1 member" in caplog.text
    assert "README" in caplog.text


def test_expand_paths(tmp_path: Path) -> None:
    rows = [{"__key__": str(n), "txt": b"x"} for n in range(3)]
    shards = [str(path) for path in write_shards(rows, tmp_path / "set", samples_per_shard=1)]
    (tmp_path / "set" / ".hidden.tar").write_bytes(b"x")
    (tmp_path / "set" / "notes.txt").write_text("x")
    pattern = str(tmp_path / "set" / "shard-{000000..000002}.tar")
    assert expand_paths(tmp_path / "set") == shards
    assert expand_paths(str(tmp_path / "set")) == shards
    assert expand_paths(shards[1]) == [shards[1]]
    assert expand_paths(pattern) == shards
    assert expand_paths([shards[2], Path(shards[0])]) == [shards[2], shards[0]]


@pytest.mark.parametrize(
    ("path", "message"),
    [
        ("", "is empty"),
        ([], "is empty"),
        ("pipe:cat x.tar", "a command, a chain of urls"),
        ("pipe://cat x.tar", "is not read"),
        ("ssh://host/x.tar", "is not read"),
        ("file:x.tar", "a command, a chain of urls"),
        ("file:///absent.tar", "/absent.tar does not exist"),
        ("a.tar::b.tar", "a command, a chain of urls"),
        ("${HOME}/x.tar", "a variable"),
        ("absent.tar", r"absent\.tar does not exist"),
        ("set/*.tar", "wildcards are not expanded"),
        ("set/shard-{000000..000004}.tar", r"shard-000003\.tar and 1 more of its 5 shards does not exist"),
        ("set/shard-{0", "malformed"),
        ("empty", "holds no .tar shards"),
        ("above", r"holds no .tar shards \(there are some in above/set"),
        ("rows.json", "is not a .tar shard"),
        ("zero.tar", "has no bytes"),
        (["set", "./set/shard-000001.tar"], r"shard-000001\.tar is listed twice"),
    ],
)
def test_a_path_without_shards_is_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, path: str | list[str], message: str
) -> None:
    monkeypatch.chdir(tmp_path)
    write_shards([{"__key__": str(n), "txt": b"x"} for n in range(3)], "set", samples_per_shard=1)
    os.makedirs("empty")
    write_shards([{"__key__": "0", "txt": b"x"}], "above/set")
    Path("rows.json").write_text("[]")
    Path("zero.tar").write_bytes(b"")
    with pytest.raises(ShardError, match=message):
        expand_paths(path)
