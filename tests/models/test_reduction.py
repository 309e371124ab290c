"""Losses over ranks: one reduction, token and sample averages, context-parallel parts, and steps without a target."""

from __future__ import annotations

import math

import pytest
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from packloom.errors import BatchError
from packloom.models import backward_scale, lm_loss, reduce_count, reduce_report, sample_weights, token_loss

X = -100


def test_weights_count_each_sample_alike():
    batch = {"pack_segment_ids": torch.tensor([[1, 1, 1, 2, 2, 3, 0, 0]])}
    weights = sample_weights(batch, torch.tensor([[7, 8, X, 9, X, X, X, X]]))
    assert weights.tolist() == [[0.5, 0.5, 0, 1, 0, 0, 0, 0]]
    padded = {"pack_segment_ids": torch.tensor([[1, 1, 1], [1, 1, 0]])}
    assert sample_weights(padded, torch.tensor([[7, 7, X], [7, X, X]])).tolist() == [[0.5, 0.5, 0], [1, 0, 0]]
    with pytest.raises(BatchError, match="needs pack_segment_ids"):
        sample_weights({}, torch.tensor([[7]]))


def test_loss_per_sample():
    logits = torch.randn(1, 5, 4, generator=torch.Generator().manual_seed(0))
    targets = torch.tensor([[1, 2, X, 3, X]])
    weights = sample_weights({"pack_segment_ids": torch.tensor([[1, 1, 1, 2, 2]])}, targets)
    loss, number, report = lm_loss(logits, targets=targets, weights=weights)
    nll = -logits.log_softmax(-1)
    want = (nll[0, 0, 1] + nll[0, 1, 2]) / 2 + nll[0, 3, 3]
    torch.testing.assert_close(loss, want)
    assert (number.item(), number.dtype) == (2, torch.int32)
    assert report["lm loss"].tolist() == pytest.approx([want.item(), 2])


def test_losses_of_tokens_ignore_what_is_not_counted():
    losses = torch.tensor([[1.0, float("nan"), 3.0]], requires_grad=True)
    loss, number, _ = token_loss(losses, weights=torch.tensor([[1.0, 0, 1]]))
    loss.backward()
    assert (loss.item(), number.item()) == (4, 2)
    assert losses.grad.tolist() == [[1, 0, 1]]
    with pytest.raises(BatchError, match=r"losses of shape \[1, 3\] for a loss mask of \[1, 6\].*sliced loss mask"):
        token_loss(losses, weights=torch.ones(1, 6))


def reduce_over_two(rank):
    reports = [{"lm loss": torch.tensor([3.0 * (rank + 1), 2 + rank])}, {"lm loss": torch.tensor([1.0, 1])}]
    calls = []
    original = dist.all_reduce
    dist.all_reduce = lambda *args, **options: (calls.append(1), original(*args, **options))
    assert reduce_report(reports) == {"lm loss": pytest.approx((3 + 1 + 6 + 1) / (2 + 1 + 3 + 1))}
    assert len(calls) == 1
    assert reduce_report([{"lm loss": torch.zeros(2)}]) == {"lm loss": 0.0}
    assert reduce_count(10**12 + rank) == 2 * 10**12 + 1
    assert backward_scale(8) == 0.25
    assert backward_scale(0) == 0


def test_one_reduction_over_ranks(in_ranks):
    in_ranks(2, reduce_over_two)


def linear():
    model = torch.nn.Linear(3, 4, bias=False)
    torch.nn.init.constant_(model.weight, 0.1)
    return model


def data(rank):
    """Rank 0 has four targets, rank 1 one or none: means of means would weigh them wrongly."""
    inputs = torch.randn(1, 4, 3, generator=torch.Generator().manual_seed(rank))
    return inputs, torch.tensor([[[1, 2, 3, 0]], [[X, X, 2, X]], [[X, X, X, X]]][rank])


def ddp_gradient(rank):
    for ranks in ((0, 1), (0, 2), (2, 2)):
        model = DistributedDataParallel(linear())
        inputs, targets = data(ranks[rank])
        loss, number, _ = lm_loss(model(inputs), targets=targets)
        (loss * backward_scale(reduce_count(int(number)))).backward()
        got = model.module.weight.grad
        alone = linear()
        parts = [lm_loss(alone(data(r)[0]), targets=data(r)[1]) for r in ranks]
        total = sum(int(part[1]) for part in parts)
        (sum(part[0] for part in parts) / max(total, 1)).backward()
        torch.testing.assert_close(got, alone.weight.grad)
        assert math.isfinite(got.sum())


def test_gradients_over_ranks_are_those_of_the_mean_over_all_tokens(in_ranks):
    in_ranks(2, ddp_gradient)
