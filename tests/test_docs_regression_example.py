"""examples/test_my_template.py as a user runs it: it passes, writes golden files, and notices a changed token."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

EXAMPLE = Path(__file__).resolve().parent.parent / "examples" / "test_my_template.py"


@pytest.fixture
def run(processor_dir: Callable[[str], Path], tmp_path: Path) -> Callable[[], subprocess.CompletedProcess[str]]:
    """Run the example in a folder of its own, with its golden files there."""

    def call() -> subprocess.CompletedProcess[str]:
        variables = {"PROCESSOR": str(processor_dir("qwen2_5_vl")), "GOLDEN": "golden", "PYTHONIOENCODING": "utf-8"}
        return subprocess.run(
            [sys.executable, "-m", "pytest", "-rs", "-p", "no:cacheprovider", "--rootdir", ".", str(EXAMPLE)],
            cwd=tmp_path,
            env={**os.environ, **variables},
            capture_output=True,
            encoding="utf-8",
            check=False,
        )

    return call


def test_the_example_passes_and_then_guards(
    run: Callable[[], subprocess.CompletedProcess[str]], tmp_path: Path
) -> None:
    first = run()
    assert first.returncode == 0, first.stdout
    assert "4 passed, 2 skipped" in first.stdout
    assert sorted(path.name for path in (tmp_path / "golden").iterdir()) == ["own.json", "terse.json"]

    own = tmp_path / "golden" / "own.json"
    golden = own.read_text(encoding="utf-8")
    own.write_text(re.sub(r'"trained": \[\[(\d+)', lambda m: f'"trained": [[{int(m[1]) - 1}', golden, count=1), "utf-8")
    second = run()
    assert second.returncode == 1
    assert "5 passed" in second.stdout
    assert "1 failed" in second.stdout
    assert "1 turn · plain: token 24: 'Ċ' (198, trained) → 'Ċ' (198, not trained)" in second.stdout
