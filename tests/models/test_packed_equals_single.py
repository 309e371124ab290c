"""Packed and padded batches train exactly as their samples do alone, on real tiny models."""

from __future__ import annotations

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from packloom.collates import collate_packed, collate_padded
from packloom.models import forward_step, hf_model_inputs
from packloom.types import EncodedSample, Row

SHIFTED = {"pad_id": 0, "label_shift": "next_token"}
UNSHIFTED = {"pad_id": 0, "label_shift": "none"}
FAMILIES = ("qwen2_vl", "qwen2_5_vl", "qwen3_vl")


def step(model, batch, **settings):
    """Loss sum, tokens, and gradients by parameter name, of one batch."""
    model.zero_grad(set_to_none=True)
    output, loss_func = forward_step(iter([batch]), model, **settings)
    loss, num_tokens, _ = loss_func(output)
    loss.backward()
    gradients = {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}
    return loss.detach(), int(num_tokens), gradients


def singly(model, rows):
    """The same sums over one padded batch per row, which holds no other row and no padding."""
    losses, counts, total = [], [], {}
    for row in rows:
        loss, count, gradients = step(model, collate_padded([row], **SHIFTED))
        losses.append(loss)
        counts.append(count)
        for name, gradient in gradients.items():
            total[name] = total.get(name, 0) + gradient
    return sum(losses), sum(counts), total


def assert_same_training(got, want):
    torch.testing.assert_close(got[0], want[0], rtol=1e-5, atol=0)
    assert got[1] == want[1] > 0
    assert got[2].keys() == want[2].keys()
    whole = torch.stack([gradient.norm() for gradient in want[2].values()]).norm()
    for name, gradient in want[2].items():
        error = (got[2][name] - gradient).norm()
        assert error <= 1e-4 * gradient.norm() + 1e-7 * whole, f"{name}: {error} of {gradient.norm()}"


@pytest.fixture(params=FAMILIES)
def family(request):
    return request.param


@pytest.fixture
def model(models, family):
    return models[family]


@pytest.fixture
def rows(make_row, family):
    """Images of different sizes, two images in one row, a row of text only, a row of two tokens."""
    return [
        make_row(family, 3, (4, 6), 5, seed=1),
        make_row(family, 9, seed=2),
        make_row(family, 2, (8, 2), (2, 4), 6, seed=3),
        make_row(family, 2, seed=4),
        make_row(family, (6, 6), 4, seed=5),
    ]


def test_packed_batch_trains_as_its_samples_alone(model, rows):
    assert_same_training(step(model, collate_packed(rows, **SHIFTED)), singly(model, rows))


@pytest.mark.parametrize(("attention", "explicit"), [("sdpa", True), ("eager", False), ("eager", True)])
def test_every_path_of_attention_trains_alike(model, rows, attention, explicit):
    batch = collate_packed(rows, segment_multiple=4, **SHIFTED)
    want = step(model, batch)
    model.set_attn_implementation(attention)
    try:
        got = step(model, batch, attn=attention, explicit_mask=explicit)
    finally:
        model.set_attn_implementation("sdpa")
    assert_same_training(got, want)


def test_average_over_samples(model, rows):
    batch = collate_packed(rows, **SHIFTED)
    output, loss_func = forward_step(iter([batch]), model, average="samples")
    loss, number, _ = loss_func(output)
    means = []
    for row in rows:
        total, count, _ = step(model, collate_padded([row], **SHIFTED))
        means.append(total / count)
    torch.testing.assert_close(loss.detach(), sum(means), rtol=1e-5, atol=0)
    assert number == len(rows)


def test_packed_batch_trains_the_vision_tower(model, rows):
    gradients = step(model, collate_packed(rows, **SHIFTED))[2]
    assert any("visual" in name and gradient.norm() > 0 for name, gradient in gradients.items())


def left_padded(batch):
    """The same rows with their padding in front."""
    moved = dict(batch)
    for name in ("input_ids", "labels", "loss_mask", "position_ids", "attention_mask", "mm_token_type_ids"):
        moved[name] = batch[name].clone()
        for row, gap in enumerate(batch["padding_mask"].sum(dim=1).tolist()):
            moved[name][..., row, :] = batch[name][..., row, :].roll(gap, dims=-1)
    return moved


def test_padded_batch_trains_as_its_samples_alone(model, rows):
    batch = collate_padded(rows, **SHIFTED)
    assert batch["padding_mask"].any()
    alone = singly(model, rows)
    assert_same_training(step(model, batch), alone)
    assert_same_training(step(model, left_padded(batch)), alone)
    assert_same_training(step(model, left_padded(collate_padded(rows, **UNSHIFTED))), alone)


def test_gaps_and_fixed_width_change_nothing(model, rows):
    gapped = collate_packed(rows, segment_multiple=4, length=128, **SHIFTED)
    assert gapped["input_ids"].shape == (1, 128)
    assert_same_training(step(model, gapped), step(model, collate_packed(rows, **SHIFTED)))


@pytest.mark.parametrize("collate", [collate_packed, collate_padded])
def test_labels_may_come_shifted_or_not(model, rows, collate):
    shifted, unshifted = collate(rows, **SHIFTED), collate(rows, **UNSHIFTED)
    assert not torch.equal(shifted["labels"], unshifted["labels"])
    assert_same_training(step(model, unshifted), step(model, shifted))


def logits(model, batch, **changed):
    with torch.no_grad():
        return model(**(hf_model_inputs(batch) | changed)).logits[0]


def alter(batch, field):
    """The batch with the first segment's ids, or its pixels, changed: later segments could see that one."""
    altered = dict(batch)
    altered[field] = batch[field].clone()
    if field == "input_ids":
        altered[field][0, :3] = torch.tensor([40, 41, 42])
    else:
        altered[field][:24] += 1.0
    return altered


@pytest.mark.parametrize("field", ["input_ids", "pixel_values"])
@pytest.mark.parametrize("attention", ["sdpa", "eager"])
def test_a_segment_does_not_see_another(model, rows, field, attention):
    model.set_attn_implementation(attention)
    batch = collate_packed(rows, **SHIFTED)
    end = int(batch["cu_seqlens_q"][1])
    before, after = logits(model, batch), logits(model, alter(batch, field))
    model.set_attn_implementation("sdpa")
    assert (before[:end] - after[:end]).abs().max() > 0.1
    torch.testing.assert_close(after[end:], before[end:], rtol=0, atol=1e-6)


@pytest.mark.parametrize("mistake", ["three rows of positions", "cache"])
def test_the_isolation_test_can_fail(model, rows, mistake):
    batch = collate_packed(rows, **SHIFTED)
    end = int(batch["cu_seqlens_q"][1])
    wrong = {"use_cache": True} if mistake == "cache" else {"position_ids": batch["position_ids"]}
    before, after = logits(model, batch, **wrong), logits(model, alter(batch, "input_ids"), **wrong)
    assert (after[end:] - before[end:]).abs().max() > 1e-2


def test_loss_is_the_models_own(model, rows):
    batch = collate_packed(rows, **SHIFTED)
    output, loss_func = forward_step(iter([batch]), model)
    loss, num_tokens, _ = loss_func(output)
    own = model(**hf_model_inputs(batch, labels=True)).loss
    torch.testing.assert_close(own * num_tokens, loss)
    assert num_tokens == batch["num_loss_tokens"]


def test_batch_without_targets_has_a_zero_loss_with_a_graph(model, rows):
    batch = collate_packed(rows, **SHIFTED)
    batch["labels"] = torch.full_like(batch["labels"], -100)
    batch["loss_mask"] = torch.zeros_like(batch["loss_mask"])
    loss, num_tokens, gradients = step(model, batch)
    assert (loss, num_tokens) == (0, 0)
    assert gradients.keys() == dict(model.named_parameters()).keys()
    assert all(not gradient.any() for gradient in gradients.values())


def text_row(length, seed):
    ids = torch.randint(1, 48, (length,), generator=torch.Generator().manual_seed(seed))
    mask = torch.ones(length, dtype=torch.bool)
    sample = EncodedSample(key=str(seed), input_ids=ids, loss_mask=mask, position_ids=torch.arange(length)[None])
    return Row(sample=sample)


def test_a_family_with_one_position_axis_trains_alike():
    rows = [text_row(length, seed) for seed, length in enumerate((9, 1, 14, 6))]
    with torch.random.fork_rng():
        torch.manual_seed(0)
        sizes = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4}
        model = LlamaForCausalLM(LlamaConfig(vocab_size=48, initializer_range=0.3, **sizes)).float()
    alone = singly(model, rows)
    assert_same_training(step(model, collate_padded(rows, **SHIFTED)), alone)
    assert_same_training(step(model, collate_packed(rows, segment_multiple=4, length=64, **UNSHIFTED)), alone)
