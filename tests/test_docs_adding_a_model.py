"""The family of docs/adding-a-model.md, executed exactly as it is printed, on a processor with the printed template."""

from __future__ import annotations

import io
import json
import re
import shutil
from collections.abc import Callable
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

import packloom
from packloom.task_encoders import Boundary, Family
from packloom.testing import check_masks

PAGE = Path(__file__).resolve().parent.parent / "docs" / "adding-a-model.md"


def block(language: str) -> str:
    [text] = re.findall(rf"```{language}\n(.*?)```", PAGE.read_text(encoding="utf-8"), flags=re.DOTALL)
    return str(text)


@pytest.fixture(scope="module")
def my_model(processor_dir: Callable[[str], Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder that holds ``my-model``, as the page describes it."""
    folder = tmp_path_factory.mktemp("docs")
    shutil.copytree(processor_dir("qwen3_vl"), folder / "my-model")
    (folder / "my-model" / "chat_template.jinja").write_text(block("jinja"), encoding="utf-8")
    config = json.loads((folder / "my-model" / "config.json").read_text(encoding="utf-8"))
    (folder / "my-model" / "config.json").write_text(json.dumps({**config, "model_type": "my_vl"}), encoding="utf-8")
    settings = json.loads((folder / "my-model" / "processor_config.json").read_text(encoding="utf-8"))
    settings["processor_class"] = "MyVLProcessor"
    (folder / "my-model" / "processor_config.json").write_text(json.dumps(settings), encoding="utf-8")
    return folder


@pytest.fixture
def executed(my_model: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """The names that the printed code leaves behind."""
    monkeypatch.setattr("packloom.task_encoders.registry._registered", {})
    monkeypatch.chdir(my_model)
    names: dict[str, Any] = {"__name__": "adding_a_model"}
    exec(compile(block("python"), str(PAGE), "exec"), names)  # noqa: S102 - the page's own code
    return names


def test_the_code_is_under_thirty_lines() -> None:
    assert len([line for line in block("python").splitlines() if line.strip()]) < 30


def test_the_family_works_as_printed(executed: dict[str, Any]) -> None:
    picture = io.BytesIO()
    Image.new("RGB", (64, 64), "red").save(picture, "PNG")
    encoder = executed["encoder"]
    assert type(encoder).__name__ == "MyVLTaskEncoder"
    assert encoder.masks.method.name == "token_search"
    messages = [
        {"role": "user", "content": [{"type": "image"}, {"type": "text", "text": "What?"}]},
        {"role": "assistant", "content": "A square."},
    ]
    sample = encoder.encode_sample({"__key__": "k", "json": {"messages": messages}, "0.png": picture.getvalue()})
    decode = encoder.parts.tokenizer.decode
    assert decode(sample.input_ids) == (
        "<|box_start|>user<|box_end|>\n" + "<|image_pad|>" * 64 + "What?<|im_end|>\n"
        "<|box_start|>assistant<|box_end|>\nA square.<|im_end|>\n"
    )
    assert decode(sample.input_ids[sample.loss_mask]) == "A square.<|im_end|>"
    batch = encoder.collate(encoder.batch([sample]))
    assert batch["image_grid_thw"].tolist() == [[1, 16, 16]]
    assert batch["position_ids"].shape == (3, 1, sample.num_tokens)
    report = check_masks(encoder)
    assert next(group for group in report.groups() if group.name == "plain").counts == {"ok": 26}


def test_it_is_needed(my_model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("packloom.task_encoders.registry._registered", {})
    with pytest.raises(packloom.PackloomError, match=r"no task encoder for model_type 'my_vl'.*register_task_encoder"):
        packloom.TaskEncoder.from_pretrained(my_model / "my-model")


def test_wrong_facts_are_found(executed: dict[str, Any]) -> None:
    """What the page promises: by the case matrix, or when the encoder is made."""
    mine, parts = executed["MyVLTaskEncoder"], executed["encoder"].parts

    class WrongStart(mine):  # type: ignore[misc, valid-type]
        family = replace(mine.family, boundaries=(Boundary(start="<|box_end|>", ends=("<|im_end|>",)),))

    class WrongImages(mine):  # type: ignore[misc, valid-type]
        family = replace(mine.family, image_rule=lambda parts: replace(mine.family.image_rule(parts), patch_size=14))

    failed = check_masks(WrongStart(parts)).failed
    assert "span 0 is '\\nAnswer number 1.<|im_end|>', expected 'Answer number 1.'" in failed[0].message
    with pytest.raises(packloom.PackloomError, match="was predicted from the header, but the processor made"):
        WrongImages(parts)


def test_every_fact_is_explained() -> None:
    text = PAGE.read_text(encoding="utf-8")
    assert [item.name for item in fields(Family) if f"`{item.name}`" not in text and item.name != "name"] == []
