"""to_device: tensors move, everything else stays what it is."""

from __future__ import annotations

import pytest
import torch

import packloom.models

KEYS = ["a", "b"]
BATCH = {
    "input_ids": torch.arange(3),
    "attention_mask": None,
    "max_seqlen_q": 3,
    "sample_keys": KEYS,
    "layout": "packed",
}


@pytest.mark.parametrize("device", ["meta", torch.device("meta")])
def test_only_tensors_move(device):
    moved = packloom.models.to_device(BATCH, device)
    assert list(moved) == list(BATCH)
    assert moved["input_ids"].device.type == "meta"
    assert moved["input_ids"].dtype == torch.int64
    assert moved["sample_keys"] is KEYS
    assert {name: moved[name] for name in ("attention_mask", "max_seqlen_q", "layout")} == {
        "attention_mask": None,
        "max_seqlen_q": 3,
        "layout": "packed",
    }


def test_the_batch_itself_is_left_alone():
    packloom.models.to_device(BATCH, "meta")
    assert BATCH["input_ids"].tolist() == [0, 1, 2]


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_values_survive_the_way_there_and_back():
    there = packloom.models.to_device(BATCH, "cuda")
    assert there["input_ids"].device.type == "cuda"
    assert packloom.models.to_device(there, "cpu")["input_ids"].tolist() == [0, 1, 2]
