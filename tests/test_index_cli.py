"""``packloom index``: its summary, its JSON and its exit status."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner, Result

from packloom.datasets import open_dataset, write_shards
from packloom.errors import ShardError
from packloom.index_cli import EPILOG, index

app = typer.Typer()
app.command(epilog=EPILOG)(index)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Three shards without an index."""
    write_shards(({"__key__": f"{n}", "json": {"n": n}} for n in range(5)), tmp_path, samples_per_shard=2)
    for path in (tmp_path / ".packloom").iterdir():
        path.unlink()
    return tmp_path


def call(*arguments: object) -> Result:
    return CliRunner().invoke(app, [*map(str, arguments), "--workers", "0"])


def test_a_whole_folder(folder: Path) -> None:
    result = call(folder)
    assert result.exit_code == 0
    assert "3 shards indexed, 0 up to date, 5 samples" in result.stdout
    assert open_dataset(folder).fingerprint[:16] in result.stdout
    assert "Next:" in result.stdout
    assert "0 shards indexed, 3 up to date" in call(folder).stdout
    assert "3 shards indexed, 0 up to date" in call(folder, "--rebuild").stdout


def test_json(folder: Path, tmp_path: Path) -> None:
    result = call(folder, "--json", "--index-dir", tmp_path / "index")
    assert (result.exit_code, json.loads(result.stdout)) == (0, {
        "num_samples": 5, "num_indexed": 3, "num_skipped": 0, "faults": [], "failures": [],
        "folders": [{
            "path": str(folder), "num_shards": 3, "num_samples": 5,
            "fingerprint": open_dataset(folder, index_dir=tmp_path / "index").fingerprint,
        }],
    })  # fmt: skip


def test_damage_is_listed_and_is_status_1(folder: Path) -> None:
    shard = folder / "shard-000001.tar"
    shard.write_bytes(shard.read_bytes()[:1500])
    (folder / "shard-000002.tar").unlink()
    (folder / "shard-000002.tar").symlink_to("nowhere")
    result = call(folder)
    assert result.exit_code == 1
    assert "left out 2 (read.truncated)" in result.stdout
    assert "shard-000002.tar: cannot be read: No such file" in result.stdout
    assert "mend or remove the shards without index" in result.stdout
    found = json.loads(call(folder, "--json").stdout)
    assert [(fault["key"], fault["code"]) for fault in found["faults"]] == [("2", "read.truncated")]
    assert found["failures"][0]["shard"] == str(folder / "shard-000002.tar")


def test_no_shards_is_an_error_of_ours(tmp_path: Path) -> None:
    assert isinstance(call(tmp_path).exception, ShardError)  # which the command line turns into status 2
