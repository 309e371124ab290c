"""``packloom plan``: the file that it writes, what it says, and how it ends."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from packloom.cli import app
from packloom.datasets import write_shards
from packloom.errors import ConfigError
from packloom.loader import build_loader
from packloom.task_encoders import TaskEncoder

pytest.importorskip("pyarrow")


def run(*arguments: str) -> Any:
    return CliRunner().invoke(app, ["plan", *arguments])


@pytest.fixture(scope="module")
def shards(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("plan") / "shards"
    turns = [[("user", "?"), ("assistant", "word " * (n + 1))] for n in range(30)]
    turns[4] = turns[4][:1]  # nothing to train on
    rows = [
        {"__key__": f"{n:03d}", "json": {"messages": [{"role": role, "content": text} for role, text in each]}}
        for n, each in enumerate(turns)
    ]
    write_shards(rows, folder)
    return str(folder)


def test_a_plan_is_written_and_run(shards: str, processor_dir: Callable[[str], Path], tmp_path: Path) -> None:
    folder, out = str(processor_dir("qwen2_5_vl")), str(tmp_path / "plan.parquet")
    arguments = (shards, "--processor", folder, "--out", out, "--pack-length", "128", "--seed", "3", "--workers", "0")
    result = run(*arguments, "--json")
    assert result.exit_code == 1, result.output  # one sample is bad
    report = json.loads(result.stdout)
    assert report["num_samples"] == 30
    assert [fault["key"] for fault in report["faults"]] == ["004"]
    encoder = TaskEncoder.from_pretrained(folder, max_length=128)
    batches = list(build_loader(shards, encoder, pack_length=128, seed=3, epochs=1, plan=out))
    assert len(batches) == sum(report["num_packs"])
    keys = sorted(key for batch in batches for key in batch["sample_keys"])
    assert keys == [f"{n:03d}" for n in range(30) if n != 4]
    shown = run(*arguments)
    assert "30 samples (0 measured now)" in shown.stdout
    assert "left out: 1 × " in shown.stdout
    assert f"build_loader(..., plan={out!r})" in shown.stdout


def test_a_config_names_all(shards: str, processor_dir: Callable[[str], Path], tmp_path: Path) -> None:
    config = tmp_path / "data.yaml"
    config.write_text(f"source: {{path: {shards}, epochs: 2}}\npacking: {{pack_length: 256}}\n", encoding="utf-8")
    common = ("--processor", str(processor_dir("qwen2_5_vl")), "--out", str(tmp_path / "plan.parquet"))
    result = run("--config", str(config), *common, "--workers", "0", "--json")
    assert len(json.loads(result.stdout)["num_packs"]) == 2, result.output
    for wrong in ((shards, "--config", str(config), *common), common):
        assert isinstance(run(*wrong).exception, ConfigError)
