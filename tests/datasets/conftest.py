"""What the tests of indexed datasets share: tars written member by member, images, and folders of shards."""

from __future__ import annotations

import io
import json
import tarfile
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from PIL import Image

Members = Sequence[tuple[str, bytes]]


@pytest.fixture
def make_shard() -> Callable[..., str]:
    """``make_shard(path, [("a.json", b"{}"), ...])`` writes a tar and returns its path."""

    def make(path: Path, members: Members, format: int = tarfile.PAX_FORMAT) -> str:
        path.parent.mkdir(parents=True, exist_ok=True)
        with tarfile.open(path, "w", format=format) as tar:
            for name, data in members:
                info = tarfile.TarInfo(name)
                info.size = len(data)
                tar.addfile(info, io.BytesIO(data))
        return str(path)

    return make


@pytest.fixture
def make_image() -> Callable[..., bytes]:
    """``make_image(width, height, "JPEG", orientation)``: the bytes of an image."""

    def make(width: int, height: int, format: str = "JPEG", orientation: int = 1) -> bytes:
        image = Image.new("RGB", (width, height), (200, 90, 10))
        exif = Image.Exif()
        exif[0x0112] = orientation
        target = io.BytesIO()
        image.save(target, format, **({"exif": exif} if orientation > 1 else {}))
        return target.getvalue()

    return make


@pytest.fixture
def shards(tmp_path: Path, make_shard: Callable[..., str], make_image: Callable[..., bytes]) -> Path:
    """A folder of three shards of 4, 1 and 3 samples, with long names, several parts and parts without bytes."""
    folder = tmp_path / "shards"
    counts = {"a.tar": 4, "b.tar": 1, "c.tar": 3}
    for shard, count in counts.items():
        members: list[tuple[str, bytes]] = []
        for number in range(count):
            key = f"{shard[0]}/{'ü' * 120 if number == 2 else ''}{number}"
            members.append((f"{key}.json", json.dumps({"n": number, "shard": shard}).encode()))
            members.append((f"{key}.0.JPG", make_image(30 + number, 20)))
            members += [(f"{key}.txt", b"")] if number == 1 else []
        make_shard(folder / shard, members)
    return folder
