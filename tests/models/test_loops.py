"""The loops of examples/, on the CPU: FSDP2 with a rank of text only, and Megatron Core's own schedule with resume."""

from __future__ import annotations

import copy
import importlib.util
import io
import json
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from PIL import Image
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor
from torch.overrides import TorchFunctionMode

from packloom import TaskEncoder, build_loader
from packloom.collates import collate_packed, make_dummy
from packloom.datasets import write_shards
from packloom.models import forward_step
from packloom.models.model_kit import apply_freeze_policy, build_optimiser

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
FAMILY = "qwen3_vl"
VISION_TOKENS = torch.tensor([1, 3, 4])


def example(name):
    spec = importlib.util.spec_from_file_location(f"example_{name}", EXAMPLES / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def model(models):
    return copy.deepcopy(models[FAMILY]).train()


@pytest.fixture
def rows(make_row):
    """What rank 0 and rank 1 get: the second has no image, and fewer supervised tokens."""
    return [[make_row(FAMILY, 3, (4, 6), 5, seed=1), make_row(FAMILY, 9, seed=2)], [make_row(FAMILY, 6, seed=3)]]


@pytest.fixture
def dummy(make_row):
    return make_dummy(make_row(FAMILY, 2, (2, 2), 2, seed=9), VISION_TOKENS)


def batch_of(rows, dummy=None):
    return collate_packed(rows, pad_id=0, label_shift="next_token", dummy=dummy)


def whole(tensor):
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


def gradients(model):
    return {name: whole(p.grad).clone() for name, p in model.named_parameters() if p.grad is not None}


def test_a_dummy_changes_neither_loss_nor_gradients(model, rows, dummy):
    """It runs the tower, whose parameters get gradients of zero."""
    found = []
    for item in (None, dummy):
        model.zero_grad(set_to_none=True)
        output, loss_func = forward_step(iter([batch_of(rows[1], item)]), model)
        loss, number, _ = loss_func(output)
        loss.backward()
        found.append((loss.detach(), int(number), gradients(model)))
    (loss, number, plain), (dummy_loss, dummy_number, with_dummy) = found
    torch.testing.assert_close(dummy_loss, loss)
    assert dummy_number == number
    tower = {name for name in with_dummy if "visual" in name}
    assert with_dummy.keys() - plain.keys() == tower == {n for n, _ in model.named_parameters() if "visual" in n}
    assert not any(with_dummy[name].any() for name in tower)
    for name, gradient in plain.items():
        torch.testing.assert_close(with_dummy[name], gradient, rtol=1e-4, atol=1e-5)


def test_fsdp2_with_a_rank_of_text_only(model, rows, dummy, in_ranks):
    loop = example("fsdp2_loop")
    alone = copy.deepcopy(model)
    apply_freeze_policy(alone, vision=True)
    union, loss_func = forward_step(iter([batch_of([*rows[0], *rows[1]])]), alone)
    loss, number, _ = loss_func(union)
    (loss / number).backward()
    want = gradients(alone)
    assert not any("visual.blocks" in name for name in want)

    def train(rank):
        sharded = loop.prepare(model, init_device_mesh("cpu", (2,), mesh_dim_names=("dp",)))
        part = loop.train_step(sharded, batch_of(rows[rank], dummy))
        dist.all_reduce(part)
        torch.testing.assert_close(part, (loss / number).detach())
        got = gradients(sharded)
        assert got.keys() == want.keys()
        for name, gradient in want.items():
            torch.testing.assert_close(got[name], gradient, rtol=1e-3, atol=1e-5)

    in_ranks(2, train)


def raw(number):
    """Every third sample has an image."""
    parts = [{"type": "text", "text": "What?"}]
    media = {}
    if number % 3 == 0:
        buffer = io.BytesIO()
        Image.new("RGB", (56, 28 * (1 + number)), "red").save(buffer, "PNG")
        media, parts = {"0.png": buffer.getvalue()}, [{"type": "image", "image": "0.png"}, *parts]
    answer = [{"type": "text", "text": " word" * (1 + number)}]
    messages = [{"role": "user", "content": parts}, {"role": "assistant", "content": answer}]
    return {"__key__": f"r{number}", "json": {"messages": messages}, **media}


@pytest.fixture(scope="module")
def load_real(processor_dir, tmp_path_factory):
    """A loader of nine samples, one a batch, in an order that no number of ranks changes."""
    encoder = TaskEncoder.from_pretrained(processor_dir("qwen2_5_vl"))
    shards = tmp_path_factory.mktemp("shards")
    write_shards([raw(number) for number in range(9)], shards, samples_per_shard=9)

    def build(**place):
        settings = {"layout": "padded", "label_shift": "next_token", "micro_batch_size": 1, "dummy_media": "per_batch"}
        return build_loader(shards, encoder, seed=3, epochs=None, **settings, **place)

    return build


def test_fsdp2_goes_on_with_one_rank_where_two_stopped(family_model, load_real, in_ranks, tmp_path):
    """Model, momentum and loader: as one process that has never stopped."""
    loop, fresh = example("fsdp2_loop"), family_model("qwen2_5_vl").train()

    def optimiser_of(net):
        return build_optimiser(net, torch.optim.SGD, lr=0.1, momentum=0.9)

    alone, batches = copy.deepcopy(fresh), iter(load_real())
    apply_freeze_policy(alone, vision=True)
    optimiser, keys = optimiser_of(alone), []
    for number in (2, 2, 1):  # two ranks twice, then one
        window = [next(batches) for _ in range(number)]
        keys.append([batch["sample_keys"] for batch in window])
        for batch in window:
            output, loss_func = forward_step(iter([batch]), alone)
            (loss_func(output)[0] / sum(item["num_loss_tokens"] for item in window)).backward()
        optimiser.step()
        optimiser.zero_grad()

    def run(rank, world_size, steps, start=0):
        sharded = loop.prepare(fresh, init_device_mesh("cpu", (world_size,), mesh_dim_names=("dp",)))
        optimiser, loader = optimiser_of(sharded), load_real(dp_rank=rank, dp_size=world_size)
        if start:
            loop.load(tmp_path, start, sharded, optimiser, loader)
        batches = iter(loader)
        for step in range(start, start + steps):
            batch = next(batches)
            assert batch["sample_keys"] == keys[step][rank]
            loop.train_step(sharded, batch)
            optimiser.step()
            optimiser.zero_grad()
        loop.save(tmp_path, start + steps, sharded, optimiser, loader)

    in_ranks(2, lambda rank: run(rank, 2, steps=2))
    in_ranks(1, lambda rank: run(rank, 1, steps=1, start=2))
    got = torch.load(tmp_path / "model-3.pt", weights_only=True)["model"]
    start = dict(fresh.named_parameters())
    for name, parameter in alone.named_parameters():
        torch.testing.assert_close(got[name], parameter.detach(), rtol=1e-3, atol=1e-4)
        assert parameter.requires_grad != torch.equal(parameter, start[name]), name


class CudaIsCPU(TorchFunctionMode):
    """Megatron Core's schedules make their counters on "cuda"."""

    def __torch_function__(self, func, types, args=(), kwargs=None):
        kwargs = dict(kwargs or {})
        if str(kwargs.get("device", "")).startswith("cuda"):
            kwargs["device"] = "cpu"
        return func(*args, **kwargs)


@pytest.fixture
def parallel_state(tmp_path):
    parallel_state = pytest.importorskip("megatron.core.parallel_state", reason="needs the extra 'megatron'")
    dist.init_process_group("gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1)
    parallel_state.initialize_model_parallel()
    yield parallel_state
    parallel_state.destroy_model_parallel()
    dist.destroy_process_group()


def test_megatrons_own_schedule_takes_the_mean_over_all_tokens(model, rows, parallel_state):
    loop = example("megatron_loop")
    alone = copy.deepcopy(model)
    parts = [forward_step(iter([batch_of(part)]), alone) for part in rows]
    sums = [loss_func(output) for output, loss_func in parts]
    mean = sum(part[0] for part in sums) / sum(int(part[1]) for part in sums)
    mean.backward()
    stage = loop.HuggingFaceStage(model)
    optimiser = torch.optim.SGD(stage.parameters(), lr=0.0)
    with CudaIsCPU():
        loss = loop.train_step(iter([batch_of(part) for part in rows]), stage, optimiser, num_microbatches=2)
    assert loss == pytest.approx(mean.item(), rel=1e-5)
    want = gradients(alone)
    for name, gradient in gradients(model).items():
        torch.testing.assert_close(gradient, want[name], rtol=1e-3, atol=1e-6)


def test_megatrons_loop_goes_on_at_the_very_next_batch(family_model, load_real, parallel_state):
    loop = example("megatron_loop")
    stage = loop.HuggingFaceStage(family_model("qwen2_5_vl").train())

    def losses(loader, stage, steps):
        optimiser, batches = torch.optim.SGD(stage.parameters(), lr=0.1), iter(loader)
        with CudaIsCPU():
            return [loop.train_step(batches, stage, optimiser) for _ in range(steps)]

    loader = load_real()
    losses(loader, stage, 2)
    state, saved = json.dumps(loader.state_dict()), copy.deepcopy(stage)
    want = losses(loader, stage, 2)
    resumed = load_real()
    resumed.load_state_dict(json.loads(state))
    assert losses(resumed, saved, 2) == want
    assert want[0] != want[1]
