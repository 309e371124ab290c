"""The code of docs/model-side.md and docs/batch-contract.md, executed as it is printed, on small data."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch

import packloom
from packloom import TaskEncoder
from packloom.datasets import write_shards

DOCS = Path(__file__).resolve().parents[2] / "docs"


def blocks(page):
    return re.findall(r"```python\n(.*?)```", (DOCS / page).read_text(encoding="utf-8"), flags=re.DOTALL)


def executed(code, **names):
    exec(compile(code, "docs", "exec"), names)  # noqa: S102 - the page's own code
    return names


def raw(number):
    messages = [{"role": "user", "content": "Go."}, {"role": "assistant", "content": " word" * (1 + number)}]
    return {"__key__": f"r{number}", "json": {"messages": messages}}


@pytest.fixture(scope="module")
def encoder(processor_dir):
    return TaskEncoder.from_pretrained(processor_dir("qwen2_5_vl"), max_length=2048)


def test_the_model_kit(models, tmp_path, capsys):
    models["qwen3_vl"].save_pretrained(tmp_path)
    [_, kit] = blocks("model-side.md")
    assert "Qwen/Qwen3-VL-4B-Instruct" in kit
    code = kit.replace("Qwen/Qwen3-VL-4B-Instruct", str(tmp_path))
    names = executed(code, torch=torch, my_patch=lambda model: model, my_fsdp=lambda model: model)
    assert re.search(r"vision +\d[\d,]+ +0\n", capsys.readouterr().out)
    model = names["model"]
    assert {p.dtype for p in model.parameters() if p.requires_grad} == {torch.float32}
    assert {p.dtype for p in model.model.visual.blocks.parameters()} == {torch.bfloat16}
    assert [group["weight_decay"] for group in names["optimiser"].param_groups] == [0.1, 0.0]


def test_the_trainers_collate(encoder):
    [collate, _] = blocks("model-side.md")
    names = executed(collate, encoder=encoder)
    batch = names["collate"]([raw(0), raw(4)])
    assert batch["input_ids"].shape[0] == 1
    assert names["arguments"]["remove_unused_columns"] is False


def test_both_ways_to_dspark_batches(encoder, tmp_path):
    write_shards(map(raw, range(8)), tmp_path, samples_per_shard=8)
    [code] = blocks("batch-contract.md")
    names = executed(code, packloom=packloom, encoder=encoder, samples=[raw(0), raw(1)], shards=tmp_path)
    assert next(iter(names["from_samples"]))["loss_mask"].shape == (8, 4096)
    assert next(iter(names["batches"]))["loss_mask"].shape == (8, 4096)
