"""The examples of docs/blends.md run as they stand, in order."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

DOCUMENT = Path(__file__).resolve().parents[2] / "docs" / "blends.md"


def test_the_examples(
    write: Callable[..., str], encoder_class: Any, tmp_path: Path, monkeypatch: Any, capsys: Any
) -> None:
    for name, count in (("charts", 40), ("ocr", 25), ("web", 10)):
        write([1 + place % 8 for place in range(count)], name=name)
    monkeypatch.chdir(tmp_path)
    text = DOCUMENT.read_text(encoding="utf-8")
    [yaml_block] = re.findall(r"^```yaml\n(.*?)^```", text, re.DOTALL | re.MULTILINE)
    (tmp_path / "blend.yaml").write_text(yaml_block, encoding="utf-8")
    blocks = re.findall(r"^```python\n(.*?)^```", text, re.DOTALL | re.MULTILINE)
    assert len(blocks) == 3
    names: dict[str, Any] = {"encoder": encoder_class()}
    counts: dict[str, float] = {}
    for block in blocks:
        exec(compile(block, str(DOCUMENT), "exec"), names)  # noqa: S102 - our own document
        counts = counts or names["loader"].metrics()
    assert counts["samples/charts"] > 2 * (counts["samples/ocr"] + counts["samples/web"])
    keys = [key for batch in names["loader"] for key in batch["sample_keys"]]
    assert len(keys) == 2 * (40 + 37)
    keys = [key for batch in names["sets"]["all"] for key in batch["sample_keys"]]
    assert keys == [f"{place:04d}" for place in [*range(10), *range(20, 25)]]
    assert re.search(r"^ocr \d+\nall \d+$", capsys.readouterr().out, re.MULTILINE)
