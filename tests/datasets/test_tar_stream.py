"""Tars that are read forwards only: the same samples as from a file, and damage costs what lies behind it."""

from __future__ import annotations

import io
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import packloom.datasets.tar_stream as tar_stream
from packloom.datasets import read_shard
from packloom.datasets.tar_stream import read_stream
from packloom.errors import ReadError

LONG = "d" * 90 + "/" + "k" * 120  # needs a header of its own, in pax and in GNU tars


class Forwards:
    """Only bytes, a few at a time, and no way back."""

    def __init__(self, data: bytes, most: int = 700) -> None:
        self._file = io.BytesIO(data)
        self._most = most
        self.largest = 0

    def read(self, size: int, /) -> bytes:
        self.largest = max(self.largest, size)
        return self._file.read(min(size, self._most))


def tar(*members: tuple[str, bytes], format: int = tarfile.PAX_FORMAT) -> bytes:
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w", format=format) as target:
        for name, data in members:
            info = tarfile.TarInfo(name)
            info.size = len(data)
            target.addfile(info, io.BytesIO(data))
    return file.getvalue()


def read(data: bytes, *, first: int = 0, step: int = 1, limit: int = 1 << 20) -> list[Any]:
    items = read_stream(Forwards(data), "s", first=first, step=step, max_member_bytes=limit)
    return [
        (i.key, i.code) if isinstance(i, ReadError) else {n: v for n, v in i.items() if n != "__url__"} for i in items
    ]


MEMBERS = (
    ("a.json", b"{}"), ("a.0.JPG", b"x" * 512), ("__meta__", b"no"), ("b.json", b"1"), (f"{LONG}.txt", b"y" * 3000),
    ("nodot", b"ignored"), ("c.txt", b""),
)  # fmt: skip
SAMPLES = [
    {"__key__": "a", "json": b"{}", "0.jpg": b"x" * 512},
    {"__key__": "b", "json": b"1"},
    {"__key__": LONG, "txt": b"y" * 3000},
    {"__key__": "c", "txt": b""},
]


@pytest.mark.parametrize("format", [tarfile.PAX_FORMAT, tarfile.GNU_FORMAT])
def test_the_samples_of_a_tar(format: int, tmp_path: Path) -> None:
    data = tar(*MEMBERS, format=format)
    assert read(data) == SAMPLES
    for first in range(3):
        assert read(data, first=first, step=3) == SAMPLES[first::3]
    (tmp_path / "s.tar").write_bytes(data)
    assert [{**sample, "__url__": "s"} for sample in read_shard(str(tmp_path / "s.tar"))] == [
        {**sample, "__url__": "s"} for sample in SAMPLES
    ]


def test_tars_one_after_the_other() -> None:
    second = tar(("d.txt", b"z"))
    assert read(tar(*MEMBERS) + second + tar() + tar(("e.txt", b"w"))) == [
        *SAMPLES,
        {"__key__": "d", "txt": b"z"},
        {"__key__": "e", "txt": b"w"},
    ]
    assert read(tar(*MEMBERS[:3], ("b.json", b""), ("b.0.jpg", b"")) + b"#!/bin/sh" * 100) == [
        SAMPLES[0],
        ("b", "read.header"),
    ]


def test_every_cut_costs_the_sample_that_it_falls_into() -> None:
    data = tar(("a.txt", b"x" * 600), ("a.json", b"{}"), ("b.txt", b"y"), ("c.txt", b"z" * 600))
    whole = [
        {"__key__": "a", "txt": b"x" * 600, "json": b"{}"},
        {"__key__": "b", "txt": b"y"},
        {"__key__": "c", "txt": b"z" * 600},
    ]
    for stop in range(0, len(data) - 10_240 + 5120, 64):
        got = read(data[:stop])
        num_good = 0 if stop < 3072 else 1 if stop < 4096 else 2  # once the next header is there
        assert got[:-1] == whole[: len(got) - 1]
        assert len(got) - 1 == num_good
        assert isinstance(got[-1], tuple), (stop, got)
        assert got[-1][1] in ("read.truncated", "read.header", "read.not_tar")


def test_faults_of_single_samples() -> None:
    data = tar(
        ("a.txt", b"1"), ("b.TXT", b"2"), ("b.txt", b"3"), ("a.json", b"{}"), ("d.txt", b"4" * 2000), ("e.txt", b"5")
    )
    assert read(data, limit=1000) == [
        {"__key__": "a", "txt": b"1"},
        ("b", "read.case_collision"),
        ("a", "read.not_adjacent"),
        ("d", "read.member_too_large"),
        {"__key__": "e", "txt": b"5"},
    ]


def test_memory_does_not_grow_with_the_stream(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tar_stream, "_NUM_KEYS", 4)
    readers: list[Any] = []
    make = tar_stream._Reader
    monkeypatch.setattr(tar_stream, "_Reader", lambda *a: readers.append(make(*a)) or readers[-1])
    count = sum(1 for _ in _items(tar(*((f"{n}.txt", b"x") for n in range(50)))))
    assert (count, len(readers[0]._seen)) == (50, 4)


def _items(data: bytes) -> Iterator[Any]:
    return read_stream(Forwards(data), "s", first=0, step=1, max_member_bytes=10)


def test_a_header_that_claims_gigabytes_is_no_reason_to_read_them() -> None:
    info = tarfile.TarInfo("x" * 200 + ".txt")
    header = bytearray(info.tobuf(tarfile.GNU_FORMAT))  # a long name: its header says how many bytes the name takes
    header[124:136] = b"77777777777\0"
    total = sum(header[:148]) + sum(header[156:512]) + 8 * 32
    header[148:156] = b"%06o\0 " % total
    stream = Forwards(bytes(header) + bytes(1 << 16))
    [fault] = read_stream(stream, "s", first=0, step=1, max_member_bytes=1 << 40)
    assert isinstance(fault, ReadError)
    assert fault.code == "read.header"
    assert stream.largest <= 1 << 20


def test_reading_goes_on_behind_a_damaged_header() -> None:
    members = [(f"{n}.{part}", bytes([65 + n]) * 700) for n in range(6) for part in ("json", "jpg")]
    whole = tar(*members)
    with tarfile.open(fileobj=io.BytesIO(whole)) as archive:
        offsets = {member.name: member.offset for member in archive}
    samples = [{"__key__": str(n), "json": bytes([65 + n]) * 700, "jpg": bytes([65 + n]) * 700} for n in range(6)]

    def damaged(*names: str, fill: bytes) -> Any:
        data = bytearray(whole)
        for name in names:
            data[offsets[name] : offsets[name] + 512] = fill * 512
        return read(bytes(data))

    for fill in (b"\xff", b"\0"):
        lost = [(str(n), "read.header") for n in range(6)]
        # too early to tell what all have: both neighbours
        assert damaged("2.jpg", fill=fill) == [*samples[:2], *lost[2:4], *samples[4:]]
        # later the neighbour that has what all had is whole
        assert damaged("4.jpg", fill=fill) == [*samples[:4], lost[4], samples[5]]
        assert damaged("5.json", fill=fill) == [*samples[:5], lost[5]]
        assert damaged("4.json", "4.jpg", fill=fill) == [*samples[:4], samples[5], ("s", "read.header")]
        assert damaged("5.jpg", fill=fill) == [*samples[:5], lost[5]]
        assert damaged("0.json", fill=fill) == [lost[0], *samples[1:]]
        assert damaged("0.json", "0.jpg", fill=fill)[1:] == samples[2:]


def test_half_a_sample_never_arrives() -> None:
    """Wherever a header or an end mark is spoilt, what arrives is whole, and what does not is named."""
    members = [
        (f"{n}.{part}", bytes(n % 2) + b"x" * (1100 * (n % 2))) for n in range(8) for part in ("json", "jpg", "txt")
    ]
    data = tar(*members)
    with tarfile.open(fileobj=io.BytesIO(data)) as archive:
        found = [(member.name.split(".")[0], member.offset) for member in archive]
    for key, offset in found:
        for fill in (b"\xff", b"\0"):
            items = read(data[:offset] + fill * 512 + data[offset + 512 :])
            whole = {item["__key__"] for item in items if isinstance(item, dict)}
            named = {item[0] for item in items if isinstance(item, tuple)}
            assert all(len(item) == 4 for item in items if isinstance(item, dict)), (offset, items)
            assert key in named
            assert whole | named == {str(n) for n in range(8)}
            assert whole >= {str(n) for n in range(8) if n > int(key) + 1 or n < int(key) - 1}
            assert len(items) == 8
