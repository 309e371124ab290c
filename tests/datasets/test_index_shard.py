"""index_shard and ShardIndex: where each payload stands, how large each image is, and what is wrong with a sample."""

from __future__ import annotations

import hashlib
import tarfile
import zlib
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from packloom.datasets.index import Member, ShardIndex, make_index
from packloom.datasets.index_shard import index_shard
from packloom.datasets.shards import read_shard
from packloom.datasets.table_file import pack_table, unpack_table
from packloom.errors import ReadError, ShardError
from packloom.image_size import image_size
from packloom.task_encoders.images import read_header
from packloom.types import Media


@pytest.mark.parametrize("format", [tarfile.PAX_FORMAT, tarfile.GNU_FORMAT])
def test_offsets_point_to_payloads_behind_long_names_too(
    tmp_path: Path, make_shard: Callable[..., str], format: int
) -> None:
    long = "ä" * 150
    path = make_shard(
        tmp_path / "s.tar", [("a.json", b"{}"), (f"{long}.JPG", b"picture"), (f"{long}.txt", b"")], format
    )
    index = index_shard(path, name="s.tar")
    content = Path(path).read_bytes()
    assert [index.key(place) for place in range(index.num_samples)] == ["a", long]
    found = [[(m.part, content[m.offset : m.offset + m.size]) for m in index.members(place)] for place in range(2)]
    assert found == [[("json", b"{}")], [("jpg", b"picture"), ("txt", b"")]]
    assert index.members(0)[0] == Member("json", 512, 2, zlib.crc32(b"{}"), 0, 0)
    assert index.members(1)[0].offset > 1024 + 512  # the long name takes headers of its own
    assert index.shard_bytes == len(content)
    assert index.sha256 == hashlib.sha256(content).hexdigest()
    assert index.mtime_ns == Path(path).stat().st_mtime_ns


def test_image_sizes_are_those_of_the_image_as_it_is_shown(
    tmp_path: Path, make_shard: Callable[..., str], make_image: Callable[..., bytes]
) -> None:
    images = {
        "jpg": (make_image(70, 30), (70, 30)),
        "turned.jpg": (make_image(70, 30, "JPEG", 6), (30, 70)),
        "upside.jpg": (make_image(70, 30, "JPEG", 3), (70, 30)),
        "turned.png": (make_image(70, 30, "PNG", 8), (30, 70)),
        "webp": (make_image(70, 30, "WEBP", 5), (30, 70)),
        "gif": (make_image(9, 8, "GIF"), (9, 8)),
        "bmp": (make_image(9, 8, "BMP"), (9, 8)),
        "tif": (make_image(9, 8, "TIFF"), (9, 8)),
        "txt": (make_image(5, 4), (5, 4)),  # the bytes count, not the name
    }
    path = make_shard(tmp_path / "s.tar", [(f"a.{part}", data) for part, (data, _) in images.items()])
    members = index_shard(path, name="s.tar").members(0)
    assert {m.part: (m.width, m.height) for m in members} == {part: size for part, (_, size) in images.items()}
    for part, (data, size) in images.items():
        header = read_header(Media(kind="image", name=part, data=data))
        assert (header.width, header.height) == size


@pytest.mark.parametrize("data", [b"", b"{}", b"\xff\xd8\xff", b"\x89PNG\r\n\x1a\n" + b"x" * 40, b"RIFF....WAVE"])
def test_what_is_no_readable_image_has_no_size(data: bytes) -> None:
    assert image_size(data) == (0, 0)


def test_faults_are_those_of_read_shard(tmp_path: Path, make_shard: Callable[..., str]) -> None:
    members = [("a.json", b"1"), ("b.json", b"2"), ("a.txt", b"3"), ("c.jpg", b"4"), ("c.JPG", b"5"), ("d.json", b"6")]
    content = Path(make_shard(tmp_path / "whole.tar", members)).read_bytes()
    path = tmp_path / "s.tar"
    path.write_bytes(content[: 12 * 512])  # all members are whole, the end mark is missing: d may lack parts
    index = index_shard(str(path), name="s.tar")
    items = list(read_shard(str(path)))
    assert [index.key(place) for place in range(index.num_samples)] == ["b"]
    assert [(fault.key, fault.code) for fault in index.faults] == [
        ("a", "read.not_adjacent"),
        ("c", "read.case_collision"),
        ("d", "read.truncated"),
    ]
    assert [(item.key, item.code) for item in items if isinstance(item, ReadError)] == [
        (fault.key, fault.code) for fault in index.faults
    ]
    assert str(tmp_path) not in "".join(map(str, index.faults))  # the same shard elsewhere gives the same index


def test_a_sparse_member_is_a_fault_since_its_bytes_stand_nowhere_in_one_piece(tmp_path: Path) -> None:
    sparse = tarfile.TarInfo("a.bin")
    sparse.type = tarfile.GNUTYPE_SPARSE
    header = bytearray(sparse.tobuf(tarfile.GNU_FORMAT))
    header[386:398], header[398:410] = b"00000000000\0", b"00000000000\0"  # one piece: at 0, of 0 bytes
    header[483:495] = b"00000002000\0"  # the real size: a hole of 1,024 bytes
    header[148:156] = b"        "
    header[148:156] = b"%06o\0 " % sum(header)
    path = tmp_path / "s.tar"
    path.write_bytes(bytes(header) + bytes(1024))
    index = index_shard(str(path), name="s.tar")
    assert (index.num_samples, [fault.code for fault in index.faults]) == (0, ["read.special_member"])


def test_what_is_no_tar_is_one_fault(tmp_path: Path) -> None:
    (tmp_path / "s.tar").write_bytes(b"no tar at all" * 100)
    index = index_shard(str(tmp_path / "s.tar"), name="s.tar")
    assert (index.num_samples, [(f.key, f.code) for f in index.faults]) == (0, [("s.tar", "read.not_tar")])


names = st.text(st.characters(exclude_categories=["Cs"]) | st.just("\udcff"), max_size=8)  # a byte that is no UTF-8
member = st.builds(
    Member,
    part=names,
    offset=st.integers(0, 1 << 40),
    size=st.integers(0, 1 << 33),
    crc32=st.integers(0, (1 << 32) - 1),
    width=st.integers(0, 1 << 16),
    height=st.integers(0, 1 << 16),
)


@settings(deadline=None, max_examples=60)
@given(st.lists(st.tuples(names, st.lists(member, min_size=1, max_size=4)), max_size=5))
def test_an_index_survives_its_file(samples: list[tuple[str, list[Member]]]) -> None:
    fault = ReadError("is bad \udcff", key="k\udcff", code="read.x", hint="mend it")
    index = make_index(samples, shard_bytes=1 << 42, mtime_ns=1 << 60, sha256="ab", faults=[fault])
    data = index.to_bytes()
    back = ShardIndex.from_bytes(data, where="here")
    assert [(back.key(place), back.members(place)) for place in range(back.num_samples)] == samples
    assert (back.shard_bytes, back.mtime_ns, back.sha256) == (1 << 42, 1 << 60, "ab")
    assert str(back.faults[0]) == str(fault)
    assert back.to_bytes() == data


def test_an_index_is_small() -> None:
    samples = []
    for n in range(1000):
        image = Member("0.jpg", (n << 17) + 1536, 90_000, n * 977_777, 640, 480)
        samples.append((f"{n:09d}", [Member("json", n << 17, 800, n * 977_777, 0, 0), image]))
    data = make_index(samples, shard_bytes=1 << 30, mtime_ns=0, sha256="0" * 64).to_bytes()
    assert len(data) < 60_000
    assert ShardIndex.from_bytes(data, where="here").nbytes < 60_000


@settings(deadline=None, max_examples=60)
@given(st.data())
def test_a_damaged_index_file_is_refused(data: st.DataObject) -> None:
    whole = make_index(
        [("a", [Member("json", 512, 2, 7, 0, 0)]), ("b", [Member("json", 1536, 2, 7, 0, 0)])],
        shard_bytes=10_240,
        mtime_ns=5,
        sha256="ab" * 32,
    ).to_bytes()
    place = data.draw(st.integers(0, len(whole) - 1))
    flipped = bytearray(whole)
    flipped[place] ^= 1 << data.draw(st.integers(0, 7))
    with pytest.raises(ShardError, match="here"):
        ShardIndex.from_bytes(bytes(flipped), where="here")
    with pytest.raises(ShardError, match="here"):
        ShardIndex.from_bytes(whole[:place], where="here")


@pytest.mark.parametrize(
    ("column", "values"),
    [
        ("offset", [512, 10_239]),  # behind the end of the shard
        ("first", [0, 2, 1]),
        ("first", [0, 1, 3]),
        ("first", [1, 1, 2]),
        ("key_end", [0, 1, 5]),
        ("part", [0, 1]),
        ("size", [2]),
        ("size", [2, 2**64 - 1]),
    ],
)
def test_numbers_that_lead_astray_are_refused(column: str, values: list[int]) -> None:
    index = make_index(
        [("a", [Member("json", 512, 2, 7, 0, 0)]), ("b", [Member("json", 1536, 2, 7, 0, 0)])],
        shard_bytes=10_240,
        mtime_ns=5,
        sha256="ab",
    )
    header, columns = unpack_table(index.to_bytes(), where="here")
    bad = pack_table(header, {**columns, column: np.array(values, dtype=np.uint64)})
    with pytest.raises(ShardError, match="here is damaged"):
        ShardIndex.from_bytes(bad, where="here")


def test_another_version_is_named() -> None:
    header, columns = unpack_table(make_index([], shard_bytes=0, mtime_ns=0, sha256="").to_bytes(), where="here")
    with pytest.raises(ShardError, match="here has version 99, this packloom reads 3"):
        ShardIndex.from_bytes(pack_table({**header, "version": 99}, columns), where="here")


def test_a_shard_that_changes_while_it_is_indexed_is_refused(
    tmp_path: Path, make_shard: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    path = make_shard(tmp_path / "s.tar", [("a.json", b"{}")])

    def sized(data: bytes) -> tuple[int, int]:
        with open(path, "ab") as file:
            file.write(bytes(512))
        return 0, 0

    monkeypatch.setattr("packloom.datasets.index_shard.image_size", sized)
    with pytest.raises(ShardError, match="changed while it was being indexed"):
        index_shard(path, name="s.tar")


def test_headers_of_an_image_are_read_without_its_pixels(make_image: Callable[..., bytes]) -> None:
    data = make_image(4000, 3000)
    assert image_size(data[: len(data) // 8]) == (4000, 3000)
