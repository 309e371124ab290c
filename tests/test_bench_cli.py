"""``packloom bench``: what it counts is what the loader gives."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from typer.testing import CliRunner

from packloom.bench import tensor_bytes
from packloom.cli import app
from packloom.datasets import write_shards
from packloom.loader import build_loader
from packloom.task_encoders import TaskEncoder


@pytest.fixture(scope="module")
def shards(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("bench") / "shards"
    rows = [
        {"__key__": f"{n:03d}", "json": {"messages": [turn("user", "?"), turn("assistant", "word " * n)]}}
        for n in range(1, 41)
    ]
    write_shards(rows, folder)
    return folder


def turn(role: str, text: str) -> dict[str, str]:
    return {"role": role, "content": text}


def run(*arguments: str) -> object:
    return CliRunner().invoke(app, ["bench", *arguments])


def test_the_figures_are_those_of_the_loader(shards: Path, processor_dir: Callable[[str], Path]) -> None:
    folder = processor_dir("qwen2_5_vl")
    where = ("--data", str(shards), "--processor", str(folder))
    result = run(*where, "--workers", "0", "--pack-length", "256", "--seconds", "0.2", "--json")
    assert result.exit_code == 0, result.output
    figures = json.loads(result.stdout)
    assert list(figures)[:8] == [
        "name",
        "samples_per_s",
        "tokens_per_s",
        "loss_tokens_per_s",
        "bytes_per_sample",
        "fill",
        "peak_rss_mb",
        "first_batch_s",
    ]
    encoder = TaskEncoder.from_pretrained(folder, max_length=256)
    batch = next(iter(build_loader(str(shards), encoder, pack_length=256)))
    per_sample = tensor_bytes(batch) / batch["source_sample_num"]
    assert figures["bytes_per_sample"] == pytest.approx(per_sample, rel=0.3)
    assert 0.9 < figures["fill"] <= 1
    assert figures["tokens_per_s"] > figures["loss_tokens_per_s"] > figures["samples_per_s"] > 0
    assert figures["peak_rss_mb"] > 50


def test_too_little_data_is_an_error_in_one_line(shards: Path, processor_dir: Callable[[str], Path]) -> None:
    result = run("--data", str(shards / "nothing"), "--processor", str(processor_dir("qwen2_5_vl")))
    assert result.exit_code != 0
    assert run("--data", str(shards), "--processor", "x", "--media", "slow").exit_code == 2
