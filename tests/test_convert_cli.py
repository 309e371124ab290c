"""``packloom convert``: every command of docs/convert.md, the summary, the JSON and the exit status."""

from __future__ import annotations

import base64
import importlib.util
import io
import json
import re
import shlex
from pathlib import Path
from typing import Any

import pytest
import typer
from PIL import Image
from typer.testing import CliRunner, Result

import packloom.datasets.convert.run as convert_run
from packloom.convert_cli import EPILOG, _config, convert
from packloom.datasets import open_dataset
from packloom.datasets.convert import ConvertConfig
from packloom.datasets.convert.runners import InProcess
from packloom.errors import ConfigError, ShardError

DOCS = Path(__file__).resolve().parent.parent / "docs" / "convert.md"
COMMANDS = re.findall(
    r"`packloom convert ([^`]+)`", DOCS.read_text(encoding="utf-8").split("## What")[0].split("per source:")[1]
)
LANCE = re.compile(r"\.lance|parquet|hf")

app = typer.Typer()
app.command(epilog=EPILOG)(convert)


def call(*arguments: object) -> Result:
    return CliRunner().invoke(app, [*map(str, arguments), "--workers", "0"])


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The current folder, with what the docs name, but for the tables."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "images").mkdir()
    (tmp_path / "pictures").mkdir()
    for number in range(4):
        Image.new("RGB", (5, 4 + number)).save(tmp_path / f"images/{number}.png")
        Image.new("RGB", (5, 4 + number)).save(tmp_path / f"pictures/{number}.jpg")
        (tmp_path / f"pictures/{number}.txt").write_text("a picture")
    rows = [
        {"image": f"{n}.png", "conversations": [{"from": "human", "value": "<image>"}, {"from": "gpt", "value": "x"}]}
        for n in range(4)
    ]
    (tmp_path / "llava.json").write_text(json.dumps(rows))
    (tmp_path / "chats.jsonl").write_text("\n".join(map(json.dumps, rows)))
    return tmp_path


def image(number: int) -> bytes:
    target = io.BytesIO()
    Image.new("RGB", (4, 4 + number)).save(target, "PNG")
    return target.getvalue()


def make_tables(folder: Path) -> None:
    """The sources that need optional packages."""
    import lance  # noqa: PLC0415
    import pyarrow as pa  # noqa: PLC0415
    from pyarrow import parquet  # noqa: PLC0415

    import datasets as hf  # noqa: PLC0415

    base: dict[str, Any] = {"question": ["?"] * 4, "answer": ["!"] * 4}
    images = [image(n) for n in range(4)]
    table = pa.table({**base, "score": [1, 4, 5, 6], "image": images})
    parquet.write_table(table, folder / "rows.parquet")
    lance.write_dataset(table, str(folder / "data.lance"))
    lance.write_dataset(pa.table({**base, "images": [["a"], ["b"], ["a"], ["b"]]}), str(folder / "chats.lance"))
    lance.write_dataset(pa.table({"name": ["a", "b"], "data": images[:2]}), str(folder / "media.lance"))
    hf.DatasetDict({"train": hf.Dataset(table)}).save_to_disk(str(folder / "hf-folder"))


@pytest.mark.parametrize("command", [c for c in COMMANDS if not LANCE.search(c)])
def test_documented_command(command: str, here: Path) -> None:
    if "old-shards" in command:
        assert call("llava.json", "old-shards", "--media-root", "images").exit_code == 0
    result = call(*shlex.split(command))
    assert result.exit_code == 0, result.output
    assert "4 rows = 4 samples + 0 quarantined" in result.stdout
    assert len(open_dataset("shards")) == 4


def test_documented_commands_of_tables(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """All of them in a process of their own, since they open Lance."""
    if any(importlib.util.find_spec(name) is None for name in ("lance", "datasets")):
        pytest.skip("needs pylance and datasets: pip install 'packloom[lance,hf]'")
    import subprocess  # noqa: PLC0415
    import sys  # noqa: PLC0415

    commands = [command for command in COMMANDS if LANCE.search(command) and "user/name" not in command]
    assert len(commands) == 5
    code = f"import sys; sys.path.insert(0, {str(Path(__file__).parent)!r}); import test_convert_cli as t; t.run_all()"
    run = subprocess.run([sys.executable, "-c", code], cwd=here, capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr
    assert json.loads(run.stdout.splitlines()[-1]) == [4, 3, 4, 4, 4]


def run_all() -> None:
    """Runs in that process: the samples that each command wrote."""
    make_tables(Path())
    convert_run.needs_spawn = lambda path, config: False  # this process may open Lance
    counts = []
    for place, command in enumerate(c for c in COMMANDS if LANCE.search(c) and "user/name" not in c):
        result = call(*shlex.split(command.replace("shards/", f"shards{place}/")))
        if result.exit_code:
            raise SystemExit(f"{command}: {result.output} {result.exception!r}")
        counts.append(len(open_dataset(f"shards{place}")))
    print(json.dumps(counts))  # noqa: T201


def test_the_mapping_is_shown_first_and_may_stop_there(here: Path) -> None:
    result = call("llava.json", "shards", "--media-root", "images", "--dry-run")
    assert result.exit_code == 0
    assert re.search(r"json: 4 rows in 1 tasks\n.*conversations +nested +conversations\n", result.stdout, re.DOTALL)
    assert re.search(r"image +text +image files", result.stdout)
    assert not list(Path("shards").glob("*.tar"))


def test_json_and_status_1(here: Path) -> None:
    Path("images/2.png").unlink()
    result = call("llava.json", "shards", "--media-root", "images", "--json")
    found = json.loads(result.stdout)
    fingerprint = found.pop("fingerprint")
    assert fingerprint == open_dataset("shards").fingerprint
    assert (result.exit_code, found) == (1, {
        "num_rows": 4, "num_samples": 3, "num_quarantined": 1, "reasons": {"convert.missing_file": 1},
        "quarantine": "shards/quarantine.jsonl", "num_shards": 1, "num_bytes": 10240, "num_resumed": 0,
        "was_finished": False,
    })  # fmt: skip
    again = call("llava.json", "shards", "--media-root", "images")
    assert again.exit_code == 1
    assert "nothing to do: 1 shards verified" in again.stdout
    assert "1 quarantined by convert.missing_file" in again.stdout


def test_settings_from_yaml_and_options_over_them(here: Path) -> None:
    uri = "data:image/png;base64," + base64.b64encode(image(1)).decode()
    rows = [{"ask": "?", "say": "!", "front": uri, "back": f"{n}.png", "vector": [1.0], "n": n} for n in range(4)]
    Path("rows.jsonl").write_text("\n".join(map(json.dumps, rows)))
    Path("convert.yaml").write_text(
        "columns: {question: ask, answer: say, images: [front, back]}\n"
        "drop: [vector]\nmedia_root: images\nsamples_per_shard: 1\n"
    )
    result = call("rows.jsonl", "shards", "--config", "convert.yaml", "--samples-per-shard", 2, "--no-check")
    assert result.exit_code == 0, result.output
    dataset = open_dataset("shards")
    assert dataset.num_shards == 2
    assert json.loads(dataset[3]["json"]) == {"question": "?", "answer": "!", "images": ["0.png", "1.png"], "n": 3}
    assert (dataset[3]["0.png"], dataset[3]["1.png"]) == (image(1), Path("images/3.png").read_bytes())
    Path("bad.yaml").write_text("colums: {}")
    assert isinstance(call("rows.jsonl", "x", "--config", "bad.yaml").exception, ConfigError)


def test_zero_is_a_value_and_not_the_lack_of_one(here: Path) -> None:
    Path("convert.yaml").write_text("seed: 3\nshuffle: true\nversion: 2\nmedia_root: images\n")
    options = dict.fromkeys(("kind", "media_root", "filter", "version", "seed", "samples_per_shard"))
    unset = {**options, "shuffle": False, "drop": (), "columns": ()}
    values = {"seed": 3, "shuffle": True, "version": 2, "media_root": "images"}
    assert _config(Path("convert.yaml"), unset) == ConvertConfig(**values)
    assert _config(Path("convert.yaml"), {**unset, "seed": 0}) == ConvertConfig(**{**values, "seed": 0})
    zero = call("llava.json", "shards", "--from", "lance", "--version", 0)
    assert isinstance(zero.exception, ConfigError)
    assert "version: Lance counts from 1, got 0" in str(zero.exception)


def test_a_column_of_any_name_is_shown(here: Path) -> None:
    Path("rows.jsonl").write_text(json.dumps({"question": "q", "answer": "a", "\udcff[b]x": None, "\udcff[/b]": [[1]]}))
    result = call("rows.jsonl", "shards", "--drop", "\udcff[/b]")
    assert result.exit_code == 0, result.output
    assert re.search(r"\\udcff\[/b\] +nested +left out: dropped", result.stdout)
    assert (
        call("rows.jsonl", "shards", "--drop", "\udcff[/b]").stdout.count("nothing to do") == 1
    )  # the plan is readable


def test_errors_are_ours(here: Path) -> None:
    assert isinstance(call("nowhere", "shards").exception, ShardError)
    assert isinstance(call("llava.json", "shards", "--map", "messages").exception, ConfigError)
    assert isinstance(call("llava.json", "shards", "--runner", "slurm").exception, ConfigError)


def test_help_has_an_example() -> None:
    assert "packloom convert llava.json shards/" in CliRunner().invoke(app, ["--help"]).output


def test_the_runner_of_a_lance_source_is_never_this_process() -> None:
    assert not isinstance(convert_run._local_runner(0, must_spawn=True), InProcess)
