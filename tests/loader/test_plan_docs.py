"""The examples of docs/plan.md run as they stand, in order."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyarrow")
DOCUMENT = Path(__file__).resolve().parents[2] / "docs" / "plan.md"


def test_the_examples(
    write: Callable[..., str], encoder_class: Any, tmp_path: Path, monkeypatch: Any, capsys: Any
) -> None:
    names: dict[str, Any] = {"encoder": encoder_class(), "shards": write([1 + place % 8 for place in range(40)])}
    monkeypatch.chdir(tmp_path)
    blocks = re.findall(r"^```python\n(.*?)^```", DOCUMENT.read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE)
    samples = []
    for block in blocks:
        exec(compile(block, str(DOCUMENT), "exec"), names)  # noqa: S102 - our own document
        samples.append(names["loader"].metrics()["samples"])
    assert samples == [80, 40]
    assert capsys.readouterr().out.startswith("(23, 23) ")
