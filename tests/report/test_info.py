"""``info``: counts written out by hand for thirty samples."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from typer.testing import CliRunner

from packloom.cli import app
from packloom.errors import ShardError
from packloom.report.info import describe_dataset
from packloom.report.spec import DataSpec


def test_counts(clean: Path) -> None:
    result = CliRunner().invoke(app, ["info", str(clean), "--json"])
    assert result.exit_code == 0, result.output
    found = json.loads(result.stdout)
    assert (found["num_shards"], found["num_samples"], found["num_images"]) == (3, 30, 14)
    assert {name: part["count"] for name, part in found["parts"].items()} == {"json": 30, "0.jpg": 10, "1.jpg": 4}
    assert found["num_bytes"] == sum(path.stat().st_size for path in clean.glob("*.tar"))
    assert (found["roles"], found["turns"]) == ({"user": 30, "assistant": 30}, {"1": 30})
    assert found["images"] == {"0": 20, "1": 6, "2": 4}
    assert found["problems"] == {}
    # 0, 3, 6, ... have widths 56 + 28 × (n % 4) and height 84; 0, 9, 18, 27 have two
    assert found["longer_side"] == {"edges": [80, 90, 100, 110, 120, 130, 140, 150], "counts": [7, 0, 0, 3, 0, 0, 4]}


def test_text_and_a_part_of_the_talks(clean: Path) -> None:
    text = CliRunner().invoke(app, ["info", str(clean), "--limit", "5"]).stdout
    assert "3 shards, 30 samples" in text
    assert "messages by role (of 5 samples, evenly spread)" in text


def test_problems(clean: Path, tmp_path: Path) -> None:
    folder = tmp_path / "shards"
    shutil.copytree(clean, folder)
    path = folder / "shard-000000.tar"
    data = path.read_bytes()
    path.write_bytes(data.replace(b"messages", b"Messages", 2))  # the bytes are not those of the index
    found = describe_dataset(DataSpec(path=(str(folder),)))
    assert found.problems == {"read.checksum": 2}
    assert found.roles["user"] == 28


def test_without_an_index(clean: Path, tmp_path: Path) -> None:
    shutil.copy(clean / "shard-000000.tar", tmp_path)
    with pytest.raises(ShardError, match="packloom index"):
        describe_dataset(DataSpec(path=(str(tmp_path),)))
