"""What a worker hands over reaches the other process unchanged, small tensors in the message, large ones beside it."""

from __future__ import annotations

import pickle
from typing import Any

import pytest
import torch

from packloom.errors import PackloomError
from packloom.loader.delivery import Delivery, portable, received

VALUES = {
    "input_ids": torch.arange(6).view(2, 3),
    "transposed": torch.arange(6).view(2, 3).T,
    "loss_mask": torch.tensor([[0.0, 1.0]]),
    "padding_mask": torch.tensor([[True, False]]),
    "empty": torch.zeros(0, 4, dtype=torch.int32),
    "number": torch.tensor(7),
    "half": torch.ones(3, dtype=torch.bfloat16),
    "complex": torch.tensor([1 + 2j]).conj(),
    "parameter": torch.nn.Parameter(torch.ones(2)),
    "sparse": torch.eye(2).to_sparse(),
    "large": torch.arange(1 << 15),
}


def test_a_batch_comes_back_as_it_was() -> None:
    batch: Any = {**VALUES, "sample_keys": ["a"], "attention_mask": None, "max_seqlen_q": 3}
    made = portable(Delivery(batch=batch))
    kept = {name for name, value in made.batch.items() if isinstance(value, torch.Tensor)}
    assert kept == {"half", "complex", "parameter", "sparse", "large"}
    again = received(made).batch
    assert list(again) == list(batch)
    for name, value in VALUES.items():
        assert type(again[name]) is type(value)
        assert again[name].dtype == value.dtype
        assert torch.equal(again[name].to_dense(), value.to_dense()), name
    assert (again["sample_keys"], again["attention_mask"], again["max_seqlen_q"]) == (["a"], None, 3)


def test_what_was_pickled_can_be_written_to() -> None:
    made = portable(Delivery(batch={"input_ids": VALUES["input_ids"]}))
    tensor = received(pickle.loads(pickle.dumps(made))).batch["input_ids"]
    tensor[0, 0] = 9
    assert tensor.tolist() == [[9, 1, 2], [3, 4, 5]]
    assert VALUES["input_ids"][0, 0] == 0


@pytest.mark.parametrize("failure", [PackloomError("x"), PackloomError(lambda: None)], ids=["whole", "no pickle"])
def test_a_failure_arrives(failure: PackloomError) -> None:
    made = pickle.loads(pickle.dumps(portable(Delivery(failure=failure))))
    assert str(received(made).failure) == str(failure)
    assert received(made).batch is None
