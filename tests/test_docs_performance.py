"""The page of figures: ratios are of medians, what did not run is named, what floors do not do has no figure."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType

import pytest

FILE = Path(__file__).resolve().parent.parent / "benchmarks" / "performance_page.py"


@pytest.fixture(scope="module")
def page() -> ModuleType:
    spec = importlib.util.spec_from_file_location("performance_page", FILE)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def turn(tokens: float) -> dict[str, float]:
    names = ("samples_per_s", "loss_tokens_per_s", "bytes_per_sample", "fill", "peak_rss_mb", "first_batch_s")
    return {"tokens_per_s": tokens, **dict.fromkeys(names, 1.0)}


def test_goals_and_table(page):
    results = {
        (page.OURS["torch"], 1): [turn(90.0), turn(100.0), turn(200.0)],
        (page.FLOORS["torch"], 1): [turn(100.0), turn(125.0), turn(160.0)],
        (page.OURS["torch"], 2): [turn(190.0)],
    }
    lines = list(page.as_lines(results))
    assert lines[0] == (
        "tokens/s over the floor with torch's resize: 0.80, turn by turn 0.80 to 1.25 (goal: 0.85 or more)"
    )
    assert "not measured" in lines[1]
    assert lines[-1].startswith("tokens/s, two workers over one: 1.90 ")
    table = list(page.as_table(results, {"Energon": "ImportError: no | such"}))
    assert len({line.count("|") for line in table}) == 1  # as many cells everywhere
    assert table[2].startswith("| packloom, torchvision's pixels | 1 | 100 | 90–200 |")
    assert "| – | – | – |" in table[3]
    assert table[-1].startswith("| Energon | | not run: ImportError: no / such |")


def test_only_what_stands_between_the_marks_is_renewed(page, tmp_path):
    (tmp_path / "performance.md").write_text("before\n<!-- figures -->\nold\n<!-- end of figures -->\nbehind\n")
    page.write_page(tmp_path, {("a", 1): [turn(5.0)]}, {})
    text = (tmp_path / "performance.md").read_text(encoding="utf-8")
    assert text.startswith("before\n<!-- figures -->\n| contender")
    assert text.endswith("<!-- end of figures -->\nbehind\n")
    assert "old" not in text
    assert "<svg" in (tmp_path / "performance.svg").read_text(encoding="utf-8")
