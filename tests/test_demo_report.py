"""The demo's numbers, on steps written out by hand."""

from __future__ import annotations

import pytest
from rich.console import Console

from packloom.demo.report import DemoReport, as_table
from packloom.demo.train import Step


def step(loss: float, seconds: float, num_tokens: int = 80) -> Step:
    return Step(loss=loss, num_samples=2, num_tokens=num_tokens, num_loss_tokens=10, seconds=seconds)


REPORT = DemoReport(
    processor="p",
    shards="s",
    pack_length=100,
    steps=(step(9.0, 100.0), step(8.0, 1.0), step(7.0, 1.0, num_tokens=90), step(3.0, 2.0)),
    skipped={"media.decode": 2, "mask.empty": 1},
)


def test_numbers() -> None:
    assert REPORT.num_samples == 8
    assert REPORT.num_tokens == 330
    assert REPORT.fill_ratio == pytest.approx(330 / 400)
    assert REPORT.tokens_per_second == pytest.approx(250 / 4)  # without the first step
    assert REPORT.first_loss == pytest.approx(8.0)  # of steps 1 to 3
    assert REPORT.last_loss == pytest.approx(6.0)  # of steps 2 to 4


def test_plain_data() -> None:
    data = REPORT.as_dict()
    assert data["loss_tokens"] == 40
    assert data["skipped"] == {"media.decode": 2, "mask.empty": 1}
    assert (data["steps"], data["samples"], data["tokens"]) == (4, 8, 330)


def test_table() -> None:
    console = Console(width=100, record=True, file=None, quiet=False)
    with console.capture() as capture:
        console.print(as_table(REPORT))
    page = capture.get()
    for text in ("8 in 4 packs (2.0 per pack)", "330, 40 of them", "82.5%", "2 × media.decode", "8.00 → 6.00, falls"):
        assert text in page
