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
    [row] = [line for line in result.stdout.splitlines() if "qwen2_5_vl" in line]
    cells = [cell.strip() for cell in row.strip("│").split("│")]
    assert cells[1] == "1563"
    assert all(re.fullmatch(r"-?\d+\.\d\d", cell) for cell in cells[2:5])
    assert re.search(r"mask cost: at most -?\d+\.\d% of rendering and tokenising \(goal: at most 15%\)", result.stdout)
