"""Each example runs as a user would run it, and prints what it promises."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from packloom.datasets import read_shard, write_shards

EXAMPLES = Path(__file__).resolve().parent.parent / "examples"


def run(name: str, *arguments: Path) -> str:
    command = [sys.executable, str(EXAMPLES / name), *map(str, arguments)]
    result = subprocess.run(
        command, capture_output=True, encoding="utf-8", check=False, env={**os.environ, "PYTHONIOENCODING": "utf-8"}
    )
    assert result.returncode == 0, result.stderr
    return result.stdout


def test_every_example_has_a_test() -> None:
    text = Path(__file__).read_text(encoding="utf-8")
    assert [path.name for path in sorted(EXAMPLES.glob("*.py")) if f'"{path.name}"' not in text] == []


def test_your_own_data(processor_dir: Callable[[str], Path], tmp_path: Path) -> None:
    out = run("your_own_data.py", processor_dir("qwen2_5_vl"), tmp_path)
    keys = [raw["__key__"] for shard in tmp_path.glob("*.tar") for raw in read_shard(str(shard))]
    assert keys == ["openai-0", "llava-0", "caption-0"]
    assert [line for line in out.splitlines() if "⟦" in line] == [
        "⟦Red.<|im_end|>⟧",
        "⟦Green.<|im_end|>⟧",
        "⟦A blue picture.<|im_end|>⟧",
    ]


def test_read_batches(processor_dir: Callable[[str], Path], tmp_path: Path) -> None:
    pytest.importorskip("easy_vqa", reason="needs the extra 'demo'")
    pytest.importorskip("skimage", reason="needs the extra 'demo'")
    from packloom.demo.data import demo_samples  # noqa: PLC0415

    write_shards(demo_samples(60), tmp_path)
    out = run("read_batches.py", processor_dir("qwen2_5_vl"), tmp_path)
    fields = {line.split()[0]: line.split(maxsplit=1)[1] for line in out.splitlines()}
    assert fields["layout"] == "packed"
    assert fields["input_ids"] == fields["labels"] == f"[1, {fields['num_input_tokens']}]"
    assert int(fields["num_input_tokens"]) > 900
