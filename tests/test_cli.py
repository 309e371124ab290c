"""The command line: version, help with an example, errors of one line with status 2, and the demo's two outputs."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path

import pytest

import packloom.demo.run
from packloom.cli import app, main
from packloom.demo.report import DemoReport
from packloom.demo.run import DemoSettings
from packloom.demo.train import Step
from packloom.errors import CapabilityError


class Result:
    """Exit status and output of one call."""

    def __init__(self, status: int, out: str, err: str) -> None:
        self.status, self.out, self.err = status, out, err


@pytest.fixture
def call(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]):
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.setenv("NO_COLOR", "1")

    def run(*arguments: str) -> Result:
        monkeypatch.setattr(sys, "argv", ["packloom", *arguments])
        status = 0
        try:
            main()
        except SystemExit as error:
            status = error.code or 0
        out, err = capsys.readouterr()
        return Result(status, out, err)

    return run


@pytest.fixture
def fake_demo(monkeypatch: pytest.MonkeyPatch) -> list[DemoSettings]:
    """A demo that returns at once; the list holds the settings it was called with."""
    calls: list[DemoSettings] = []

    def run_demo(settings: DemoSettings, console: object) -> DemoReport:
        calls.append(settings)
        losses = [5.0, 4.0, 3.0, 2.0] if settings.seed == 0 else [5.0, 5.0, 5.0, 5.0]
        steps = [Step(loss=x, num_samples=2, num_tokens=80, num_loss_tokens=10, seconds=1.0) for x in losses]
        return DemoReport(processor="p", shards="s", pack_length=100, steps=tuple(steps), skipped={"mask.empty": 1})

    monkeypatch.setattr(packloom.demo.run, "run_demo", run_demo)
    return calls


def test_version(call) -> None:
    result = call("--version")
    assert result.status == 0
    assert re.fullmatch(r"packloom \d+\.\d+\.\d+\S*\n", result.out)


@pytest.mark.parametrize("command", [None, *(item.name or item.callback.__name__ for item in app.registered_commands)])
def test_help_has_an_example(call, command: str | None) -> None:
    result = call(*filter(None, [command]), "--help")
    assert result.status == 0
    assert f"Example: packloom {command or 'demo'}" in result.out


@pytest.mark.parametrize("arguments", [["demo", "--steps", "0"], ["demo", "--no-such-option"], ["no-such-command"]])
def test_wrong_usage_is_status_2(call, arguments: list[str]) -> None:
    assert call(*arguments).status == 2


def test_an_error_is_one_line_without_traceback(call, tmp_path: Path) -> None:
    result = call("demo", "--processor", str(tmp_path / "absent"), "--out", str(tmp_path))
    assert result.status == 2
    [line] = result.err.splitlines()
    assert line.startswith("packloom: error: no processor folder at")


def test_a_folder_that_cannot_be_written_is_one_line(call, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    result = call("demo", "--out", str(tmp_path / "file"))
    assert result.status == 2
    assert len(result.err.splitlines()) == 1
    assert str(tmp_path / "file") in result.err


def test_a_missing_extra_names_the_command_that_installs_it(call, monkeypatch: pytest.MonkeyPatch) -> None:
    def run_demo(settings: object, console: object) -> None:
        raise CapabilityError("packloom demo needs\nthe package 'x': pip install 'packloom[demo]'")

    monkeypatch.setattr(packloom.demo.run, "run_demo", run_demo)
    result = call("demo")
    assert result.status == 2
    assert result.err == "packloom: error: packloom demo needs the package 'x': pip install 'packloom[demo]'\n"


def test_demo_passes_its_options_on_and_ends_with_a_table(call, fake_demo: list[DemoSettings]) -> None:
    result = call("demo", "--steps", "4", "--samples", "7", "--out", "o", "--processor", "p")
    assert result.status == 0
    assert fake_demo == [DemoSettings(out=Path("o"), processor="p", num_samples=7, num_steps=4, seed=0)]
    for text in ("fill ratio", "80.0%", "1 × mask.empty", "4.00 → 3.00, falls", "Next: packloom demo --processor"):
        assert text in result.out


def test_json_is_all_of_stdout(call, fake_demo: list[DemoSettings]) -> None:
    result = call("demo", "--json")
    assert json.loads(result.out)["skipped"] == {"mask.empty": 1}
    assert json.loads(result.out)["samples"] == 8


def test_a_long_demo_that_learns_nothing_is_status_1(call, fake_demo: list[DemoSettings]) -> None:
    assert call("demo", "--seed", "1", "--steps", "30").status == 1
    assert call("demo", "--seed", "1", "--steps", "4").status == 0
