"""One rank reads, all ranks of its group get the same batches, in few messages; ends and errors reach them all."""

from __future__ import annotations

import pytest
import torch
import torch.distributed as dist

from packloom.errors import BatchError, ConfigError, WorkerError
from packloom.models import BroadcastIterator

CU = torch.tensor([0, 2, 5], dtype=torch.int32)
BATCHES = [
    {
        "input_ids": torch.arange(5)[None],
        "labels": torch.arange(10)[None, ::2],  # not contiguous
        "loss_mask": torch.tensor([[0.0, 1, 1, 0, 1]]),
        "padding_mask": torch.tensor([[False, True, False, False, True]]),
        "attention_mask": None,
        "cu_seqlens_q": CU,
        "cu_seqlens_kv": CU,
        "pixel_values": torch.randn(3, 4, generator=torch.Generator().manual_seed(0)).to(torch.bfloat16),
        "max_seqlen_q": 3,
        "sample_keys": ["a", "b"],
        "layout": "packed",
    },
    {"input_ids": torch.zeros(1, 0, dtype=torch.int64), "scale": torch.tensor(2.5)},
]


def assert_same(got, want):
    assert list(got) == list(want)
    for name, value in want.items():
        if isinstance(value, torch.Tensor):
            assert got[name].dtype == value.dtype, name
            assert torch.equal(got[name], value), name
        else:
            assert got[name] == value, name


def read_all(rank):
    calls = []
    original = dist.broadcast
    dist.broadcast = lambda *args, **options: (calls.append(1), original(*args, **options))
    batches = BroadcastIterator(iter(BATCHES) if rank == 0 else None)
    first = next(batches)
    assert_same(first, BATCHES[0])
    assert len(calls) == 2 + 5, "two messages for the header, one for each of int64, float32, bool, int32, bfloat16"
    if rank:
        assert first["cu_seqlens_q"] is first["cu_seqlens_kv"]
    assert_same(next(batches), BATCHES[1])
    for _ in range(2):
        try:
            next(batches)
        except StopIteration:
            break
    else:
        raise AssertionError("the end of the data did not arrive")


def failing():
    yield BATCHES[1]
    raise BatchError("shard 7 is gone")


def read_a_failure(rank):
    batches = BroadcastIterator(failing() if rank == 0 else None)
    next(batches)
    kind, message = (BatchError, "shard 7") if rank == 0 else (WorkerError, "rank 0, .*BatchError: shard 7 is gone")
    with pytest.raises(kind, match=message):
        next(batches)
    unsendable = BroadcastIterator(iter([{"keys": {1, 2}}]) if rank == 0 else None)
    with pytest.raises(BatchError if rank == 0 else WorkerError, match="keys is no tensor and no plain JSON"):
        next(unsendable)


def read_in_pairs(rank):
    """Two groups of two: each has a reader of its own."""
    groups = [dist.new_group([0, 1]), dist.new_group([2, 3])]
    own = iter([{"input_ids": torch.tensor([[rank]])}]) if rank % 2 == 0 else None
    batch = next(BroadcastIterator(own, group=groups[rank // 2]))
    assert batch["input_ids"].item() == rank // 2 * 2


def test_all_ranks_get_the_batches_in_few_messages(in_ranks):
    in_ranks(2, read_all)


def test_errors_reach_all_ranks(in_ranks):
    in_ranks(2, read_a_failure)


def test_each_group_has_its_reader(in_ranks):
    in_ranks(4, read_in_pairs)


def test_a_lone_process_has_nobody_to_send_to():
    with pytest.raises(ConfigError, match="init_process_group"):
        BroadcastIterator(iter(BATCHES))


def refuse_a_reader_without_batches(rank):
    if rank == 0:
        with pytest.raises(ConfigError, match=r"pass iter\(loader\), got \[\]"):
            BroadcastIterator([])


def test_the_first_rank_needs_an_iterator(in_ranks):
    in_ranks(2, refuse_a_reader_without_batches)
