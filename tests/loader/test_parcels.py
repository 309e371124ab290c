"""What a worker hands over reaches the other process unchanged, small tensors in the message, large ones beside it."""

from __future__ import annotations

import os
import pickle
from collections.abc import Iterator
from multiprocessing.reduction import ForkingPickler
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from packloom.errors import PackloomError, WorkerError
from packloom.loader.delivery import Delivery
from packloom.loader.parcels import Receiver, pack
from packloom.rooms import SegmentPool, hand_over_room

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
    "large_and_turned": torch.arange(1 << 15).view(2, -1).T,
    "large_half": torch.arange(1 << 16).to(torch.bfloat16),
}


@pytest.fixture(params=["segments", "none"])
def pool(request, monkeypatch) -> SegmentPool | None:
    """That of a worker; none where the system has no such memory."""
    made = SegmentPool() if request.param == "segments" else None
    monkeypatch.setattr("packloom.rooms._pool", made)
    return made


def sent(parcel: Any) -> Any:
    return pickle.loads(ForkingPickler.dumps(parcel))


def test_a_batch_comes_back_as_it_was(pool) -> None:
    batch: Any = {**VALUES, "sample_keys": ["a"], "attention_mask": None, "max_seqlen_q": 3}
    parcel = pack(Delivery(batch=batch), 0)
    moved = {name for name, value in parcel.delivery.batch.items() if type(value).__name__ == "_Lying"}
    assert moved == ({"half", "complex", "large", "large_and_turned", "large_half"} if pool else set())
    again = Receiver().unpack(sent(parcel)).batch
    assert list(again) == list(batch)
    for name, value in VALUES.items():
        assert type(again[name]) is type(value)
        assert again[name].dtype == value.dtype
        assert torch.equal(again[name].to_dense(), value.to_dense()), name
    assert (again["sample_keys"], again["attention_mask"], again["max_seqlen_q"]) == (["a"], None, 3)


def test_what_was_received_can_be_written_to(pool) -> None:
    batch = {"input_ids": torch.arange(6), "large": torch.arange(1 << 15)}
    for tensor in Receiver().unpack(sent(pack(Delivery(batch=batch), 0))).batch.values():
        tensor.fill_(9)
        assert tensor.unique().tolist() == [9]
    assert batch["input_ids"].tolist() == [0, 1, 2, 3, 4, 5]
    if pool:  # without segments torch lets both processes see the same memory
        assert batch["large"][:3].tolist() == [0, 1, 2]


@pytest.mark.parametrize("failure", [PackloomError("x"), PackloomError(lambda: None)], ids=["whole", "no pickle"])
def test_a_failure_arrives(pool, failure: PackloomError) -> None:
    delivery = Receiver().unpack(sent(pack(Delivery(failure=failure), 0)))
    assert str(delivery.failure) == str(failure)
    assert delivery.batch is None


def _batches(sizes: list[int]) -> Iterator[dict[str, Any]]:
    for number, size in enumerate(sizes):
        room = hand_over_room((size, 3), torch.uint8)
        room.fill_(number)
        yield {"pixel_values": room, "position_ids": torch.full((size,), number)}


@settings(max_examples=50, deadline=None)
@given(sizes=st.lists(st.integers(1, 60_000), min_size=2, max_size=12), late=st.integers(0, 4))
def test_kept_batches_keep_their_values_however_late_they_are_read(sizes: list[int], late: int) -> None:
    """``late`` messages are on their way at any time; each worker's come in order."""
    with pytest.MonkeyPatch.context() as patch:
        pool = SegmentPool()
        patch.setattr("packloom.rooms._pool", pool)
        receiver, queue, kept = Receiver(), [], []
        for batch in _batches(sizes):
            queue.append(sent(pack(Delivery(batch=batch), 3)))
            del batch
            if len(queue) > late:
                kept.append(receiver.unpack(queue.pop(0)).batch)
        kept += [receiver.unpack(parcel).batch for parcel in queue]
    for number, (size, batch) in enumerate(zip(sizes, kept, strict=True)):
        assert batch["pixel_values"].shape == (size, 3)
        assert batch["pixel_values"].unique().tolist() == [number]
        assert batch["position_ids"].tolist() == [number] * size
    assert len(pool._segments) <= 2 * (late + 2)
    assert len(receiver._memories) <= len(pool._segments) + len(pool._gone)


def test_a_batch_whose_memory_never_came_is_an_error(monkeypatch) -> None:
    monkeypatch.setattr("packloom.rooms._pool", SegmentPool())
    receiver, lost = Receiver(), pack(Delivery(batch={"large": VALUES["large"]}), 0)
    Receiver().unpack(sent(lost))
    with pytest.raises(WorkerError, match="memory 0 of worker 0 did not arrive"):
        receiver.unpack(sent(pack(Delivery(batch={"large": VALUES["large"]}), 0)))


def test_descriptors_are_closed(monkeypatch) -> None:
    monkeypatch.setattr("packloom.rooms._pool", SegmentPool())
    receiver = Receiver()
    counts = []
    for number in range(1, 30):
        batch = {"large": torch.zeros(number * 40_000, dtype=torch.uint8)}
        receiver.unpack(sent(pack(Delivery(batch=batch), 0)))
        counts.append(len(os.listdir("/proc/self/fd")))
    assert max(counts[5:]) <= counts[4]
