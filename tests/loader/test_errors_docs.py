"""The example of docs/errors.md runs as it stands, and its tables name what there is."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any, get_args

from packloom.config import LoaderConfig
from packloom.datasets.policy import Stage

DOCUMENT = Path(__file__).resolve().parents[2] / "docs" / "errors.md"


def test_the_document(
    write: Callable[..., str], encoder_class: Any, tmp_path: Path, monkeypatch: Any, capsys: Any
) -> None:
    monkeypatch.chdir(tmp_path)
    text = DOCUMENT.read_text(encoding="utf-8")
    [block] = re.findall(r"^```python\n(.*?)^```", text, re.DOTALL | re.MULTILINE)
    names: dict[str, Any] = {"encoder": encoder_class(), "shards": write([2] * 8, {2: "cook", 5: "media"})}
    exec(compile(block, str(DOCUMENT), "exec"), names)  # noqa: S102 - our own document
    lines = capsys.readouterr().out.splitlines()
    assert re.search(r"\d+ \{.*\}$", block.splitlines()[6].split("# ")[1])
    counts, expected = lines[0].split(" ", 1), block.splitlines()[6].split("# ")[1].split(" ", 1)
    assert (counts[0], eval(counts[1])) == (expected[0], eval(expected[1]))
    assert [line.split()[0] for line in sorted(lines[1:])] == ["0002", "0005"]
    assert re.findall(r"^\| `(\w+)` \| (?!so|any)", text.split("## Limits")[0], re.MULTILINE) == list(get_args(Stage))
    for name, value in re.findall(r"^\| `(\w+)=([\w.]+)` \|", text, re.MULTILINE):
        assert getattr(LoaderConfig(), name) == eval(value)
    metrics = set(names["loader"].metrics())
    told = set(re.findall(r"`([\w/]+)`", text.split("## Metrics")[1]))
    assert {name for name in metrics if not name.startswith("skipped/")} <= told
