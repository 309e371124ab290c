"""What holds for every command: help, ``--json``, silence when piped, one line for wrong use, Ctrl-C, completion."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import packloom.datasets.files
from packloom.cli import app, main
from packloom.datasets import write_shards

COMMANDS = sorted(item.name or item.callback.__name__ for item in app.registered_commands)
SHARDS, PROCESSOR, NEW = "{shards}", "{processor}", "{new}"
#: Command → arguments of a call that is done.
GOOD = {
    "bench": ["--data", SHARDS, "--processor", PROCESSOR, "--workers", "0", "--pack-length", "64", "--seconds", "0.1"],
    "convert": ["{rows}", NEW, "--workers", "0"],
    "demo": ["--processor", "{processor}", "--steps", "1", "--samples", "2", "--out", NEW],
    "index": [SHARDS, "--workers", "0"],
    "info": [SHARDS],
    "inspect": [SHARDS, "--processor", PROCESSOR, "--out", "{new}.html"],
    "lint": [SHARDS, "--workers", "0"],
    "masks": [PROCESSOR],
    "plan": [SHARDS, "--processor", PROCESSOR, "--pack-length", "64", "--out", "{new}.parquet", "--workers", "0"],
    "stats": [SHARDS, "--processor", PROCESSOR, "--workers", "0"],
}
#: Command → arguments that name something which is not there.
WRONG_PATH = {
    "bench": ["--data", SHARDS, "--processor", "./absent"],
    "convert": ["absent.jsonl", NEW],
    "demo": ["--processor", "./absent", "--out", NEW],
    "index": ["absent"],
    "info": ["absent"],
    "inspect": ["absent", "--processor", PROCESSOR],
    "lint": ["absent"],
    "masks": ["./absent"],
    "plan": [SHARDS, "--processor", "./absent", "--out", NEW],
    "stats": ["absent", "--processor", PROCESSOR],
}


@pytest.fixture(scope="module")
def places(tmp_path_factory: pytest.TempPathFactory, processor_dir: Callable[[str], Path]) -> dict[str, str]:
    folder = tmp_path_factory.mktemp("conventions")
    talks = [
        {"messages": [{"role": "user", "content": "?"}, {"role": "assistant", "content": "word " * n}]}
        for n in range(1, 31)
    ]
    write_shards(({"__key__": f"{n:03d}", "json": talk} for n, talk in enumerate(talks)), folder / "shards")
    (folder / "rows.jsonl").write_text("\n".join(map(json.dumps, talks)), encoding="utf-8")
    return {
        "shards": str(folder / "shards"),
        "rows": str(folder / "rows.jsonl"),
        "processor": str(processor_dir("qwen2_5_vl")),
    }


@pytest.fixture
def call(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path, places: dict[str, str]):
    """``call(command, *arguments)``: exit status, stdout and stderr; neither is a terminal."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "200")

    def run(*arguments: str) -> tuple[int, str, str]:
        filled = [text.format(**places, new=tmp_path / "new") for text in arguments]
        monkeypatch.setattr(sys, "argv", ["packloom", *filled])
        with pytest.raises(SystemExit) as ended:
            main()
        return (ended.value.code or 0, *capsys.readouterr())

    return run


def test_every_command_is_in_the_tables() -> None:
    assert sorted(GOOD) == sorted(WRONG_PATH) == COMMANDS


@pytest.mark.parametrize("command", COMMANDS)
def test_json_is_all_that_is_said(call: Any, command: str) -> None:
    status, out, err = call(command, *GOOD[command], "--json")
    assert (status, err) == (0, "")
    assert isinstance(json.loads(out), dict)
    assert out.count("\n") == 1


@pytest.mark.parametrize("command", COMMANDS)
def test_quiet_when_piped(call: Any, command: str) -> None:
    status, out, err = call(command, *GOOD[command])
    assert (status, err) == (0, "")
    assert not {"\x1b", "\r"} & set(out)


@pytest.mark.parametrize("command", COMMANDS)
@pytest.mark.parametrize("wrong", ["path", "option"])
def test_wrong_use_is_one_line_and_status_2(call: Any, command: str, wrong: str, tmp_path: Path) -> None:
    arguments = WRONG_PATH[command] if wrong == "path" else ["--no-such-option"]
    status, out, err = call(command, *arguments)
    assert (status, out) == (2, "")
    [line] = err.splitlines()
    assert line.startswith("packloom: error: ")
    assert "absent" in line if wrong == "path" else f"packloom {command} --help" in line
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("command", "wrong", "said"),
    [
        ("stats", ["--cache", "{rows}"], "rows.jsonl/"),  # a file where a folder should be
        ("plan", ["--cache", "{rows}"], "Not a directory. Name another place"),
        ("inspect", ["--out", "{shards}"], "name a file such as"),
        ("lint", ["--processor", "{shards}"], "cannot load a processor"),
        ("plan", ["--config", "{binary}"], "is not plain YAML"),
    ],
)
def test_what_else_users_get_wrong(
    call: Any, command: str, wrong: list[str], said: str, places: dict[str, str], tmp_path: Path
) -> None:
    (tmp_path / "binary.yaml").write_bytes(b"\x80\xff")
    places["binary"] = str(tmp_path / "binary.yaml")
    good = GOOD[command][1:] if "--config" in wrong else GOOD[command]  # a config names the data itself
    status, out, err = call(command, *good, *wrong)
    assert (status, out) == (2, "")
    [line] = err.splitlines()
    assert said in line


def test_the_command_line_as_a_whole(call: Any) -> None:
    assert call("no-such-command") == (
        2,
        "",
        "packloom: error: No such command 'no-such-command': see `packloom --help`\n",
    )
    alone, helped = call(), call("--help")
    assert (alone[0], helped[0]) == (2, 0)
    assert alone[1].strip() == helped[1].strip()
    assert alone[2] == helped[2] == ""
    out = helped[1]
    assert "--install-completion" in out
    assert all(command in out for command in COMMANDS)


def test_help_does_not_wait_for_torch() -> None:
    code = "import sys, packloom.cli; print({'torch', 'transformers'} & set(sys.modules))"
    assert subprocess.check_output([sys.executable, "-c", code], text=True) == "set()\n"


def test_completion(places: dict[str, str]) -> None:
    environment = {**os.environ, "_PACKLOOM_COMPLETE": "complete_bash", "COMP_WORDS": "packloom li", "COMP_CWORD": "1"}
    code = "import sys; sys.argv[0] = 'packloom'; from packloom.cli import main; main()"
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=False)
    assert "lint" in done.stdout.split()


@pytest.mark.parametrize("command", sorted(set(COMMANDS) - {"bench", "info", "lint"}))  # which write nothing
def test_ctrl_c_leaves_nothing_half_written(
    call: Any, command: str, places: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(*names: str) -> None:
        raise KeyboardInterrupt

    before = snapshot(Path(places["shards"]))
    monkeypatch.setattr(packloom.datasets.files.os, "replace", interrupt)  # as late as can be
    rest = {"index": ["--rebuild"], "masks": ["--snapshot", "{new}.json"], "stats": ["--plot", "{new}.png"]}
    status, _, err = call(command, *GOOD[command], *rest.get(command, []))
    assert (status, err) == (130, "")
    assert [name for name in snapshot(tmp_path) if not name.endswith("/lock")] == []
    assert snapshot(Path(places["shards"])) == before


def snapshot(folder: Path) -> dict[str, bytes]:
    return {str(path): path.read_bytes() for path in folder.rglob("*") if path.is_file()}
