"""The examples of docs/resume.md run as they stand, in order."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

from packloom import build_loader

DOCUMENT = Path(__file__).resolve().parents[2] / "docs" / "resume.md"


def test_the_examples(
    write: Callable[..., str],
    encoder_class: Any,
    tmp_path: Path,
    monkeypatch: Any,
    capsys: Any,
    view: Callable[..., Any],
) -> None:
    shards = write([1 + place % 8 for place in range(200)])
    monkeypatch.chdir(tmp_path)
    blocks = re.findall(r"^```python\n(.*?)^```", DOCUMENT.read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE)
    assert len(blocks) == 6
    names: dict[str, Any] = {"encoder": encoder_class(), "shards": shards}
    batches = []
    for block in blocks:
        exec(compile(block, str(DOCUMENT), "exec"), names)  # noqa: S102 - our own document
        batches.append(names["batch"])
    expected = [view(batch) for batch, _ in zip(build_loader(shards, encoder_class()), range(4), strict=False)]
    assert [view(batch) for batch in batches[:2]] == expected[2:]
    assert names["loader"].state_dict()["batch"] == 2
    assert "seed is 1, the state was saved with 0. Go back to" in capsys.readouterr().out
