"""TarFile: what tarfile would write, and the index that reading all of it would give."""

from __future__ import annotations

import hashlib
import io
import os
import tarfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from packloom.datasets import tar_file
from packloom.datasets.index_shard import index_shard
from packloom.datasets.tar_file import TarFile
from packloom.datasets.tar_header import member_bytes, member_header

_NAMES = st.one_of(
    st.text(st.characters(exclude_characters="\0", max_codepoint=126), min_size=1, max_size=110),
    st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), min_size=1, max_size=230),
    st.text(st.characters(min_codepoint=0xDC80, max_codepoint=0xDCFF), min_size=1, max_size=20),  # bytes beyond UTF-8
    st.from_regex(r"[a-z0-9/]{1,120}\.json", fullmatch=True),
)
_SIZES = st.one_of(st.integers(0, 1 << 20), st.sampled_from([8**11 - 1, 8**11]))


@given(name=_NAMES, size=_SIZES)
def test_headers_are_those_of_tarfile(name: str, size: int) -> None:
    info = tarfile.TarInfo(name)
    info.size = size
    header = info.tobuf(tarfile.PAX_FORMAT, "utf-8", "surrogateescape")
    assert member_header(name, size) == header
    assert member_bytes(name, size) == len(header) + -(-size // 512) * 512


def image(number: int) -> bytes:
    out = io.BytesIO()
    turned = Image.Exif()
    turned[0x0112] = 6 if number % 2 else 1
    Image.new("RGB", (20 + number, 10)).save(out, ("JPEG", "PNG", "WEBP")[number % 3], exif=turned)
    return out.getvalue()


def test_tar_and_index_are_those_of_the_readers(tmp_path: Path) -> None:
    samples = [
        (f"a/{number}" + "ä" * 60 * (number % 2), {"json": b"{}" * number, "0.jpg": image(number), "txt": b"x" * 511})
        for number in range(6)
    ]
    tar = TarFile(tmp_path / "hidden", tmp_path / "final")
    for key, parts in samples:
        tar.write(key, parts)
    index = tar.close()

    assert index.to_bytes() == index_shard(str(tmp_path / "hidden"), name="final").to_bytes()
    assert [index.members(number)[1][4:] for number in range(6)] == [
        (20, 10), (10, 21), (22, 10), (10, 23), (24, 10), (10, 25)
    ]  # fmt: skip
    assert index.sha256 == hashlib.sha256((tmp_path / "hidden").read_bytes()).hexdigest()
    theirs = io.BytesIO()
    with tarfile.open(fileobj=theirs, mode="w") as writer:
        for key, parts in samples:
            for name, data in parts.items():
                info = tarfile.TarInfo(f"{key}.{name}")
                info.size = len(data)
                writer.addfile(info, io.BytesIO(data))
    assert (tmp_path / "hidden").read_bytes() == theirs.getvalue()


def test_a_full_disk_leaves_no_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*ignored: Any) -> None:
        raise OSError(28, "No space left on device")

    tar = TarFile(tmp_path / "hidden", tmp_path / "final")
    monkeypatch.setattr(tar_file, "_TOGETHER", 1)
    tar.write("a", {"txt": b"x" * 100_000})  # is passed on at once
    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space left"):
        tar.close()
    tar.discard()
    assert list(tmp_path.iterdir()) == []
