"""``packloom masks``: the table and the sample, JSON, golden files, and one-line errors with status 2."""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pytest
import typer

import packloom.testing
from packloom import TaskEncoder, cli
from packloom.masks_cli import EPILOG, masks
from packloom.testing import CaseResult, MaskReport
from packloom.testing.colours import coloured
from packloom.testing.matrix import built_in_cases


class Result(NamedTuple):
    status: int
    out: str
    err: str


@pytest.fixture
def call(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Callable[..., Result]:
    app = typer.Typer(rich_markup_mode="rich", pretty_exceptions_enable=False)
    app.command(epilog=EPILOG)(masks)
    monkeypatch.setattr(cli, "app", app)
    monkeypatch.setenv("COLUMNS", "220")
    monkeypatch.setenv("NO_COLOR", "1")

    def run(*arguments: object) -> Result:
        monkeypatch.setattr(sys, "argv", ["packloom", *map(str, arguments)])
        status = 0
        try:
            cli.main()
        except SystemExit as error:
            status = int(error.code or 0)
        return Result(status, *capsys.readouterr())

    return run


@pytest.fixture(scope="module")
def text_folder(processor_dir: Callable[[str], Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tokenizer with its chat template and no image processor: the matrix is short."""
    folder = tmp_path_factory.mktemp("text") / "my-model"
    folder.mkdir()
    for name in ("config.json", "tokenizer.json", "tokenizer_config.json", "chat_template.jinja"):
        shutil.copy(processor_dir("qwen3_vl") / name, folder / name)
    return folder


def test_a_table_and_a_sample(call: Callable[..., Result], text_folder: Path) -> None:
    result = call(text_folder)
    assert (result.status, result.err) == (0, "")
    rows = {cells[1].strip(): cells[2:-1] for line in result.out.splitlines() if len(cells := line.split("│")) > 4}
    assert [cell.strip() for cell in rows["plain"]] == ["6", "0", "0", "Answer number 1.<|im_end|>"]
    assert [cell.strip() for cell in rows["forged turn"][:3]] == ["0", "6", "0"]
    sample = result.out.split("2 turns, system · plain\n")[1]
    assert "⟦Answer number 1.<|im_end|>⟧⏎\n<|im_start|>user⏎\nWhat is number 2?<|im_end|>⏎" in sample
    assert "note: images: this encoder takes none" in result.out


def test_another_sample_by_name(call: Callable[..., Result], text_folder: Path) -> None:
    assert "⟦Part one.<|im_end|>⟧⏎" in call(text_folder, "--show", "1 turn · two answers in a row").out
    refused = call(text_folder, "--show", "1 turn · forged turn")
    assert "1 turn · forged turn: a text of the sample spells the control token" in refused.out
    wrong = call(text_folder, "--show", "plain")
    assert (wrong.status, wrong.err.count("\n")) == (2, 1)
    assert "there is no case 'plain'; one of them is '1 turn · plain'" in wrong.err


def test_json_is_all_of_stdout(call: Callable[..., Result], text_folder: Path, tmp_path: Path) -> None:
    result = call(text_folder, "--json", "--snapshot", tmp_path / "golden.json", "--loss-on", "last_turn")
    report = json.loads(result.out)
    assert (report["ok"], report["method"], len(report["cases"])) == (True, "token_search", 108)
    by_name = {case["name"]: case for case in report["cases"]}
    assert by_name["3 turns · plain"]["spans"] == ["Answer number 3.<|im_end|>"]
    assert f"--check {tmp_path / 'golden.json'}" in result.err
    assert json.loads((tmp_path / "golden.json").read_text(encoding="utf-8"))["settings"]["loss_on"] == "last_turn"


def test_a_golden_file_finds_a_changed_token(call: Callable[..., Result], text_folder: Path, tmp_path: Path) -> None:
    golden = tmp_path / "golden.json"
    assert call(text_folder, "--snapshot", golden).status == 0
    again = call(text_folder, "--check", golden)
    assert (again.status, "CHANGED" in again.out) == (0, False)

    template = tmp_path / "new.jinja"
    old = (text_folder / "chat_template.jinja").read_text(encoding="utf-8")
    template.write_text(old.replace("'<|im_end|>\\n'", "'<|im_end|>\\n\\n'"), encoding="utf-8")
    changed = call(text_folder, "--chat-template", template, "--check", golden)
    assert changed.status == 1
    assert "CHANGED 1 turn · plain: token 10: 'Ċ' (198, not trained) → 'ĊĊ' (271, not trained)" in changed.out
    assert "differs: chat template: " in changed.out
    as_json = json.loads(call(text_folder, "--chat-template", template, "--check", golden, "--json").out)
    assert len(as_json["changes"]) > 5

    silent = call(text_folder, "--no-train-terminator", "--check", golden)
    assert silent.status == 1
    line = "CHANGED 1 turn · plain: token 19: '<|im_end|>' (151645, trained) → '<|im_end|>' (151645, not trained)"
    assert line in silent.out
    assert "differs: train_terminator: True → False" in silent.out


def test_a_failed_case_is_status_1_and_no_golden_file(
    call: Callable[..., Result], text_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    failed = CaseResult(name="1 turn · plain", outcome="FAILED", message="span 0 is [red]wrong[/]")
    report = MaskReport(encoder="x", method="y", cases=(failed,))
    monkeypatch.setattr(packloom.testing, "check_masks", lambda encoder: report)
    result = call(text_folder, "--snapshot", tmp_path / "golden.json")
    assert result.status == 1
    assert "FAILED 1 turn · plain: span 0 is [red]wrong[/]" in result.out
    assert "is not written, for a case failed" in result.err
    assert not (tmp_path / "golden.json").exists()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--snapshot", "a", "--check", "b"], "give one of them"),
        (["--check", "absent.json"], "cannot read the snapshot absent.json"),
        (["--chat-template", "absent.jinja"], "cannot read the chat template absent.jinja"),
        (["--thinking", "loudly"], "thinking must be one of"),
        (["--model-type", "martian", "--chat-template", "flat.jinja"], "cannot tell where the assistant speaks"),
    ],
)
def test_what_cannot_be_checked_is_one_line(
    arguments: list[str],
    message: str,
    call: Callable[..., Result],
    text_folder: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("flat.jinja").write_text("{% for m in messages %}{{ m.content[0].text }}{% endfor %}", encoding="utf-8")
    result = call(text_folder, *arguments)
    assert (result.status, result.out) == (2, "")
    [line] = result.err.splitlines()
    assert line.startswith("packloom: error: ")
    assert message in line


def test_help_has_an_example(call: Callable[..., Result]) -> None:
    result = call("--help")
    assert result.status == 0
    assert "Example: packloom masks ./my-model --snapshot masks.json" in result.out


def test_tokens_in_colours(processor_dir: Callable[[str], Path]) -> None:
    encoder = TaskEncoder.from_pretrained(processor_dir("llava"))
    case = next(case for case in built_in_cases(encoder) if case.name == "1 turn, 1 image in turn 1 · emoji")
    text = coloured(encoder, encoder.encode_sample(case.chat))
    assert text.plain == "<s> USER: <image>×576 ⏎\n🙂 你好 1 ü ASSISTANT:⟦ 答え 1 é 👩\\u200d👧🙂</s>⟧"
    styles = {text.plain[span.start : span.end]: str(span.style) for span in text.spans}
    assert styles["<image>×576"] == "cyan"
    assert styles["</s>"] == "bold yellow"
    assert styles["🙂"] in ("green", "green dim")
    assert styles[" ASS"] in ("default", "dim")
