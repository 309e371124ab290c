"""The loader's benchmarks run in a small mode and print their figures beside their goals (whatever the figures are)."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path

import pytest

BENCHMARKS = Path(__file__).resolve().parent.parent / "benchmarks"
#: Script and arguments → how the lines with its figures begin.
RUNS = {
    "loader_speed --samples 60 --window 20 --raw 5 --decode 1 --rounds 1 --workers 0": (
        "packloom dataset over webdataset, raw bytes: ",
        "packloom dataset over webdataset, JPEG decoded: ",
    ),
    "restore_peers --samples 40 --steps 2 --workers 0": ("│ packloom, 96 lanes ",),
    "loader_memory --samples 100 --early 100 --late 200 --workers 0": ("Growth of resident memory: ",),
    "resume --samples 600 --places 30 60": ("state of 96 lanes over its bound: 0.",),
    "resume_far --shards 5 --samples 100 --lanes 2 --far 10000 --repeats 1": ("resume late over resume early: ",),
    "index_speed --samples 20 --repeats 1 --workers 1": ("CPU time of the index over listing ",),
}


@pytest.mark.parametrize("line", RUNS)
def test_it_prints_its_figures(line: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("skimage")
    script, *arguments = line.split()
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    monkeypatch.setitem(sys.modules, "energon_peer", None)  # as if it were not installed: it takes long
    monkeypatch.setattr(sys, "argv", [script, *arguments])
    importlib.import_module(script).main()
    printed = capsys.readouterr().out.splitlines()
    for start in RUNS[line]:
        [found] = [text for text in printed if text.startswith(start)]
        assert "goal" in found or found.startswith("│")
