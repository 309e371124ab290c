"""Checkpointing, compilation and the order of steps: same outputs and gradients, effects measured, mistakes named."""

from __future__ import annotations

import copy

import pytest
import torch
from torch.nn.parallel import DistributedDataParallel

from packloom.collates import collate_packed
from packloom.errors import CapabilityError, ConfigError
from packloom.models import forward_step
from packloom.models.checkpointing import apply_gradient_checkpointing, check_recomputation
from packloom.models.model_kit import (
    ORDER,
    apply_freeze_policy,
    apply_model_compile,
    apply_model_patches,
    build_model,
    build_optimiser,
    estimate_steps,
    parallelise,
    upcast_trainable,
)

FAMILY = "qwen2_5_vl"
TARGETS = ["Qwen2_5_VLTextModel:layers"]


@pytest.fixture
def model(models):
    return copy.deepcopy(models[FAMILY]).train()


@pytest.fixture
def batch(make_row):
    rows = [make_row(FAMILY, 3, (4, 6), 50, seed=1), make_row(FAMILY, 30, seed=2)]
    return collate_packed(rows, pad_id=0, label_shift="next_token")


def loss_of(model, batch):
    output, loss_func = forward_step(iter([batch]), model)
    return loss_func(output)[0]


def step(model, batch):
    """Loss, gradients and the bytes that autograd kept."""
    model.zero_grad(set_to_none=True)
    kept = 0

    def keep(tensor):
        nonlocal kept
        kept += tensor.numel() * tensor.element_size()
        return tensor

    torch.manual_seed(5)
    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        loss = loss_of(model, batch)
    loss.backward()
    return loss.detach(), {name: p.grad for name, p in model.named_parameters()}, kept


def assert_same(got, want, **tolerance):
    torch.testing.assert_close(got[0], want[0], **tolerance)
    assert got[1].keys() == want[1].keys()
    for name, gradient in want[1].items():
        torch.testing.assert_close(got[1][name], gradient, **tolerance)


@pytest.mark.parametrize(
    ("mode", "targets"),
    [("hf", []), ("custom", TARGETS), ("custom", ["Qwen2_5_VLDecoderLayer:self_attn", "Qwen2_5_VLDecoderLayer:mlp"])],
)
def test_checkpointing_keeps_less_and_changes_nothing(model, batch, mode, targets):
    model.model.language_model.layers[0].self_attn.attention_dropout = 0.3  # the second run must drop the same
    want = step(model, batch)
    names, keys = [n for n, _ in model.named_parameters()], list(model.state_dict())
    model.config.text_config.use_cache = model.config.use_cache = True
    report = apply_gradient_checkpointing(model, mode=mode, targets=targets)
    got = step(model, batch)
    assert_same(got, want)
    assert got[2] < (0.75 if targets != TARGETS[:0] else 0.6) * want[2]
    assert [n for n, _ in model.named_parameters()] == names
    assert list(model.state_dict()) == keys
    assert not (model.config.use_cache if hasattr(model.config, "use_cache") else False)
    assert not model.config.text_config.use_cache
    runs = check_recomputation(model, lambda: loss_of(model, batch))
    assert set(runs) == {*report.hf, *report.custom}
    assert set(runs.values()) == {2}
    model.eval()
    with pytest.raises(CapabilityError, match="are not recomputed"):
        check_recomputation(model, lambda: loss_of(model, batch))


def test_both_kinds_at_once(model, batch):
    want = step(model, batch)
    report = apply_gradient_checkpointing(
        model, mode="hf_with_custom", targets=["Qwen2_5_VisionTransformerPretrainedModel:merger"]
    )
    assert report.custom == ("model.visual.merger",)
    assert len(report.hf) == 4
    assert_same(step(model, batch), want)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"mode": "all"}, "mode must be one of hf, custom, hf_with_custom"),
        ({"mode": "custom"}, "mode 'custom' goes with targets"),
        ({"targets": TARGETS}, "mode 'hf' goes without targets"),
        ({"mode": "custom", "targets": ["layers"]}, "spelled 'ParentClass:child', got 'layers'"),
        ({"mode": "custom", "targets": ["Qwen2_5_VLTextModel:blocks"]}, "has the children embed_tokens, layers"),
        ({"mode": "custom", "targets": ["TextModel:layers"]}, "the model has the classes .*Qwen2_5_VLTextModel"),
        ({"mode": "custom", "targets": [*TARGETS, "Qwen2_5_VLDecoderLayer:mlp"]}, "lies within, or around"),
        ({"mode": "hf_with_custom", "targets": TARGETS}, "lies within, or around, .*recomputed already"),
    ],
)
def test_checkpointing_that_cannot_be(model, settings, message):
    with pytest.raises(ConfigError, match=message):
        apply_gradient_checkpointing(model, **settings)


def test_a_frozen_tower_has_nothing_to_recompute(model, batch):
    apply_freeze_policy(model, vision=True)
    apply_gradient_checkpointing(model)
    runs = check_recomputation(model, lambda: loss_of(model, batch))
    assert runs == {"model.language_model.layers.0": 2, "model.language_model.layers.1": 2}


def test_a_method_without_effect_is_seen(model, batch):
    apply_gradient_checkpointing(model)
    for layer in model.model.language_model.layers:
        layer._gradient_checkpointing_func = lambda run, *inputs: run(*inputs)
    with pytest.raises(CapabilityError, match=r"not recomputed in model\.language_model\.layers\.0"):
        check_recomputation(model, lambda: loss_of(model, batch))


def test_compiling_changes_nothing_and_leaves_the_tower_eager(model, batch):
    want = step(model, batch)
    names, keys = [n for n, _ in model.named_parameters()], list(model.state_dict())
    graphs = []

    def backend(graph, inputs):
        graphs.append(graph.code)
        return graph.forward

    assert apply_model_compile(model, backend=backend) == ("model.language_model", "lm_head")
    torch._dynamo.reset()
    assert_same(step(model, batch), want, rtol=1e-4, atol=1e-5)
    assert graphs
    assert not any("visual" in code for code in graphs)
    assert [n for n, _ in model.named_parameters()] == names
    assert list(model.state_dict()) == keys


def test_the_whole_order(models):
    model = build_model(models[FAMILY].config, dtype=torch.bfloat16, attn="eager")
    assert model.config._attn_implementation == "eager"
    assert model.dtype == torch.bfloat16
    seen = []
    model = apply_model_patches(model, [lambda m: seen.append("a") or m, lambda m: seen.append("b") or m])
    assert seen == ["a", "b"]
    apply_freeze_policy(model, vision=True)
    assert upcast_trainable(model) > 0
    apply_gradient_checkpointing(model)
    apply_model_compile(model, backend="eager")
    model = parallelise(model, lambda m: m)
    optimiser = build_optimiser(model, torch.optim.AdamW, lr=1e-3, weight_decay=0.1, no_decay=["norm", "bias"])
    held = {id(p) for group in optimiser.param_groups for p in group["params"]}
    assert held == {id(p) for p in model.parameters() if p.requires_grad}
    assert [group["weight_decay"] for group in optimiser.param_groups] == [0.1, 0.0]
    for name, again in {
        "patch": lambda: apply_model_patches(model, []),
        "freeze": lambda: apply_freeze_policy(model, vision=True),
        "upcast": lambda: upcast_trainable(model),
        "checkpoint": lambda: apply_gradient_checkpointing(model),
        "compile": lambda: apply_model_compile(model),
        "parallelise": lambda: parallelise(model, lambda m: m),
    }.items():
        later = ORDER[ORDER.index(name) + 1]
        with pytest.raises(ConfigError, match=f"'{name}' must come before '({'|'.join(ORDER)})'.*{later}"):
            again()


def test_what_was_done_by_hand_is_seen_too(in_ranks, model):
    model.model.language_model.compile(backend="eager")
    with pytest.raises(ConfigError, match="'checkpoint' must come before 'compile'"):
        apply_gradient_checkpointing(model)


def wrap_in_ddp(_rank):
    linear = torch.nn.Linear(2, 2)
    wrapped = parallelise(linear, DistributedDataParallel)
    with pytest.raises(ConfigError, match="'upcast' must come before 'parallelise'"):
        upcast_trainable(wrapped)


def test_the_note_is_found_below_a_wrapper(in_ranks):
    in_ranks(1, wrap_in_ddp)


def test_steps_without_meaning(model):
    with pytest.raises(ConfigError, match="the patch <lambda> must return the model, got NoneType"):
        apply_model_patches(model, [lambda m: None])
    with pytest.raises(ConfigError, match="nothing to optimise"):
        build_optimiser(torch.nn.Linear(1, 1).requires_grad_(False), torch.optim.SGD, lr=1.0)


class Counted(list):
    """Batches, and what their loader skipped."""

    def __init__(self, batches):
        super().__init__(batches)
        self.skipped = {"media.decode": 20}


def test_steps_are_counted_or_estimated():
    batches = [{"source_sample_num": 4}] * 25
    exact = estimate_steps(batches, total_samples=100, accumulation=4)
    assert (exact.steps, exact.exact, exact.batches_seen, exact.samples_seen) == (7, True, 25, 100)
    early = estimate_steps(batches, total_samples=1000, dp_size=2, accumulation=2, window=10)
    assert (early.steps, early.exact, early.batches_seen) == (63, False, 10)
    wavering = [{"source_sample_num": 4 - 3 * (i % 2)} for i in range(25)]
    assert estimate_steps(wavering, total_samples=1000, window=10, tolerance=0).exact
    skipping = estimate_steps(Counted(batches), total_samples=120)
    assert (skipping.steps, skipping.samples_seen) == (25, 120)
    with pytest.raises(ConfigError, match="gave no batch"):
        estimate_steps([], total_samples=1)
    with pytest.raises(ConfigError, match="dp_size must be positive, got 0"):
        estimate_steps(batches, total_samples=1, dp_size=0)
