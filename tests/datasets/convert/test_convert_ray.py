"""On a Ray cluster the bytes are those of a local run, though a worker is killed in the middle of a task."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from packloom.datasets.convert import ConvertConfig, convert

_SCRIPT = """
import json, os, signal, sys
from pathlib import Path
from packloom.datasets.convert import ConvertConfig, RayProcesses, RunSettings, convert

DEATHS = Path("deaths").resolve()


def check(sample):
    '''The first two workers that come to the 150th row die there.'''
    if sample["__key__"] == "000000150" and len(list(DEATHS.iterdir())) < 2:
        (DEATHS / str(os.getpid())).touch()
        os.kill(os.getpid(), signal.SIGKILL)


if __name__ == "__main__":
    DEATHS.mkdir()
    runner = RayProcesses(num_workers=2)
    config = ConvertConfig(samples_per_shard=50)
    report = convert("rows.jsonl", "ray", config, settings=RunSettings(runner=runner), check=check)
    runner.close()
    print(json.dumps([report.num_samples, report.num_bad, len(list(DEATHS.iterdir()))]))
"""


def check(sample: dict[str, bytes]) -> None:
    """Has the name of the script's check, so that the two plans are equal."""


def test_a_killed_ray_worker(tmp_path: Path, tree: Callable[[Path], dict[str, str]]) -> None:
    if importlib.util.find_spec("ray") is None:
        pytest.skip("needs Ray: pip install 'packloom[ray]'")
    rows = [{"question": "?" * (n % 9 + 1), "answer": "!"} | ({"tools": "{"} if n == 7 else {}) for n in range(400)]
    (tmp_path / "rows.jsonl").write_text("\n".join(map(json.dumps, rows)))
    (tmp_path / "script.py").write_text(_SCRIPT)
    command = [sys.executable, "script.py"]
    run = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=300, check=False)
    assert run.returncode == 0, run.stderr
    assert json.loads(run.stdout.splitlines()[-1]) == [399, 1, 2]
    check.__module__, check.__qualname__ = "__main__", "check"
    convert(tmp_path / "rows.jsonl", tmp_path / "local", ConvertConfig(samples_per_shard=50), check=check)
    assert tree(tmp_path / "ray") == tree(tmp_path / "local")
