"""next_token_targets and lm_loss: targets written out by hand, and the loss function Megatron Core expects."""

from __future__ import annotations

import math

import pytest
import torch

from packloom.errors import BatchError
from packloom.models import lm_loss, next_token_targets

X = -100


def batch(values, **changed):
    labels = torch.tensor(values)
    fields = {
        "input_ids": torch.zeros_like(labels),
        "labels": labels,
        "loss_mask": (labels != X).float(),
        "label_shift": "none",
    }
    return {name: value for name, value in (fields | changed).items() if value is not ...}


def cu(*bounds):
    return torch.tensor(bounds, dtype=torch.int32)


@pytest.mark.parametrize(
    ("boundaries", "want"),
    [
        ({"cu_seqlens_q": cu(0, 3, 8)}, [11, 12, X, 14, 15, 16, 17, X]),
        ({"cu_seqlens_q": cu(0, 1, 8)}, [X, 12, 13, 14, 15, 16, 17, X]),
        ({"cu_seqlens_q": cu(0, 8)}, [11, 12, 13, 14, 15, 16, 17, X]),
    ],
)
def test_a_shift_crosses_no_boundary_of_a_pack(boundaries, want):
    assert next_token_targets(batch([[10, 11, 12, 13, 14, 15, 16, 17]], **boundaries)).tolist() == [want]


def test_a_shift_runs_no_further_than_the_gap():
    fields = batch([[10, 11, X, X, 14, 15, 16, X]], cu_seqlens_q=cu(0, 2, 5), cu_seqlens_q_padded=cu(0, 4, 8))
    assert next_token_targets(fields).tolist() == [[11, X, X, X, 15, 16, X, X]]


def test_a_shift_of_padded_rows_takes_no_target_from_padding_or_the_next_row():
    mask = torch.tensor([[0, 1, 1, 1], [1, 1, 1, 0]])
    targets = next_token_targets(batch([[X, 11, 12, 13], [21, 22, 23, X]], attention_mask=mask))
    assert targets.tolist() == [[X, 12, 13, X], [22, 23, X, X]]


def test_shifted_labels_are_the_targets():
    fields = batch([[11, X, 13, X]], label_shift="next_token")
    assert next_token_targets(fields) is fields["labels"]


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        (batch([[1, X]], labels=...), "a loss needs labels"),
        (batch([[1, X]], label_shift=...), "a loss needs label_shift"),
        (batch([[1, X]], label_shift="hf"), "label_shift must be 'next_token' or 'none', got 'hf'"),
        (batch([[1, X]], input_ids=torch.zeros(1, 3)), r"shape of input_ids, \[1, 3\], got \[1, 2\]"),
        (batch([[1, X]], loss_mask=torch.ones(1, 2)), "loss_mask must be 1 exactly where"),
        (batch([[1, X]], loss_mask=torch.tensor([[0.5, 0.0]])), "weights are not supported"),
    ],
)
def test_labels_that_break_the_contract_are_refused(fields, message):
    with pytest.raises(BatchError, match=message):
        next_token_targets(fields)


def test_loss_is_the_sum_over_targets_with_their_number():
    logits = torch.zeros(1, 3, 4, dtype=torch.bfloat16, requires_grad=True)
    loss, num_tokens, report = lm_loss(logits, targets=torch.tensor([[2, X, 0]]))
    assert loss.dtype == torch.float32
    assert loss.item() == pytest.approx(2 * math.log(4))
    assert num_tokens.item() == 2
    assert num_tokens.dtype == torch.int32
    assert report.keys() == {"lm loss"}
    assert report["lm loss"].tolist() == pytest.approx([2 * math.log(4), 2])
    assert not report["lm loss"].requires_grad


@pytest.mark.parametrize("per_token", [True, False])
def test_loss_bears_what_megatrons_schedule_does_to_it(per_token):
    """megatron/core/pipeline_parallel/schedules.py divides the loss in place before backward."""
    logits = torch.zeros(1, 2, 4, requires_grad=True)
    loss, num_tokens, report = lm_loss(logits, targets=torch.tensor([[2, 0]]))
    if not per_token:
        loss /= torch.clamp(num_tokens, min=1)
        loss /= 2
    loss.backward()
    assert logits.grad[0, 0].tolist() == pytest.approx([v / (1 if per_token else 4) for v in (0.25, 0.25, -0.75, 0.25)])
    assert report["lm loss"][0].item() == pytest.approx(2 * math.log(4))


def test_no_targets_give_zero_with_a_graph():
    logits = torch.ones(1, 2, 4, requires_grad=True)
    loss, num_tokens, _ = lm_loss(logits, targets=torch.full((1, 2), X))
    loss.backward()
    assert (loss.item(), num_tokens.item()) == (0, 0)
    assert not logits.grad.any()


def test_logits_and_targets_must_fit():
    with pytest.raises(BatchError, match=r"logits \[1, 3, 4\] do not fit targets \[1, 2\]"):
        lm_loss(torch.zeros(1, 3, 4), targets=torch.zeros(1, 2, dtype=torch.int64))
