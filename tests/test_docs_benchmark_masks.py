"""benchmarks/masks.py runs, and prints the cost of the mask as a share for each processor (whatever the share is)."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

SCRIPT = Path(__file__).resolve().parent.parent / "benchmarks" / "masks.py"


def test_the_share_is_printed(processor_dir: Callable[[str], Path]) -> None:
    command = [sys.executable, str(SCRIPT), str(processor_dir("qwen2_5_vl")), "--rounds", "2"]
    environment = {**os.environ, "PYTHONIOENCODING": "utf-8"}
    result = subprocess.run(command, capture_output=True, encoding="utf-8", check=False, env=environment)
    assert result.returncode == 0, result.stderr
    rows = [
        [cell.strip() for cell in line.strip("│").split("│")]
        for line in result.stdout.splitlines()
        if "qwen2_5_vl" in line
    ]
    assert [row[:2] for row in rows] == [["qwen2_5_vl", "1563"], ["qwen2_5_vl + image", "1956"]]
    assert all(re.fullmatch(r"\d+\.\d\d", cell) for row in rows for cell in row[2:5])
    assert all(re.fullmatch(r"-?\d+\.\d%", row[5]) and re.fullmatch(r"\d+%", row[6]) for row in rows)
    assert re.search(r"mask cost: at most -?\d+\.\d% of rendering and tokenising \(goal: at most 15%\)", result.stdout)


def test_without_processors_it_says_so(tmp_path: Path) -> None:
    """A repository without ../shared beside it, as ``make bench`` may find it."""
    script = tmp_path / "repository" / "benchmarks" / SCRIPT.name
    script.parent.mkdir(parents=True)
    script.write_text(SCRIPT.read_text(encoding="utf-8"), encoding="utf-8")
    result = subprocess.run([sys.executable, str(script)], capture_output=True, encoding="utf-8", check=False)
    assert result.returncode == 0, result.stderr
    assert "no processors" in result.stdout
