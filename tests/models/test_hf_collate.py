"""The Trainer's collates: the model's own loss over encoder.collate_fn, over packs, and what cannot be."""

from __future__ import annotations

import copy
import pickle

import pytest
import torch

from packloom import TaskEncoder
from packloom.errors import ConfigError
from packloom.models import HFCollate, forward_step

ANSWERS = ["Red.", "A very long answer, which goes on.", "No."]
RAWS = [
    {
        "__key__": str(index),
        "json": {"messages": [{"role": "user", "content": "What?"}, {"role": "assistant", "content": answer}]},
    }
    for index, answer in enumerate(ANSWERS)
]


@pytest.fixture(scope="module")
def encoder(processor_dir):
    return TaskEncoder.from_pretrained(processor_dir("qwen2_5_vl"))


@pytest.fixture(scope="module")
def model(family_model):
    return family_model("qwen2_5_vl")


def test_the_model_takes_collate_fn_as_it_is_and_packs(encoder, model):
    output, loss_func = forward_step(iter([encoder.collate_fn(RAWS)]), model)
    total, number, _ = loss_func(output)
    want = (total / number).detach()
    padded = encoder.collate_fn(RAWS)
    assert int((padded["labels"] != -100).sum()) == number  # what the Trainer divides by
    packed = pickle.loads(pickle.dumps(HFCollate(encoder=encoder, layout="packed")))(RAWS)
    assert int((packed["labels"] != -100).sum()) == number
    assert packed["input_ids"].shape[0] == 1
    for batch in (padded, HFCollate(encoder=encoder)(RAWS), packed):
        with torch.no_grad():
            torch.testing.assert_close(model(**batch).loss, want, rtol=1e-5, atol=0)


def test_fields_that_the_trainer_removed(encoder):
    with pytest.raises(ConfigError, match="remove_unused_columns=False"):
        HFCollate(encoder=encoder)([{}, copy.copy(RAWS[0])])
