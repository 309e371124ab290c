"""A training step of a real model of every family: batches of real rows train as the rows do alone."""

from __future__ import annotations

import copy
import dataclasses
import io
import re
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from PIL import Image

from packloom import TaskEncoder
from packloom.errors import CapabilityError
from packloom.models import forward_step, hf_model_inputs, next_token_targets
from packloom.task_encoders.gemma import Gemma4TaskEncoder
from packloom.task_encoders.processors import load_parts

PACKABLE = [
    "glm46v",
    "glm4v",
    "internvl3",
    "kimi_k25",
    "llava",
    "llava_next",
    "llava_onevision",
    "ministral3",
    "mistral3",
    "pixtral",
    "qwen2_5_vl",
    "qwen2_vl",
    "qwen3_vl",
    "smolvlm",
]
#: family → why its rows cannot be packed, and which layers or masks the model itself names
LEAKING = {
    "gemma3": ("two-way attention inside images", "mask for image tokens"),
    "gemma4": ("nothing says whether this model attends both ways", "mask for image tokens"),
    "qwen3_5": ("linear-attention layers carry their state", "linear_attention layers"),
}
#: families whose language model attends to a window, which an explicit mask would take away
WINDOWED = {"llava_next", "mistral3", "pixtral"}
#: settings of an image processor that keep sequences short
UNTILED = {"smolvlm": {"do_image_splitting": False}, "internvl3": {"max_patches": 1}}
#: weights that a model has and does not read: features are taken before its last norm, or before its last layer
UNREAD = {
    "llava": r"vision_tower\.(encoder\.layers\.1|post_layernorm)\.",
    "llava_next": r"vision_tower\.(encoder\.layers\.1|post_layernorm)\.",
    "llava_onevision": r"vision_tower\.post_layernorm\.",
}
#: (height, width) of the images of each row
SIZES = [[(120, 160)], [], [(60, 90), (40, 150)]]


def row(sizes):
    """A raw row: images of noise, a question, an answer."""
    images = {}
    for index, (height, width) in enumerate(sizes):
        noise = np.random.default_rng(height * 10_007 + width).integers(0, 256, (height, width, 3), dtype=np.uint8)
        buffer = io.BytesIO()
        Image.fromarray(noise).save(buffer, "PNG", compress_level=1)
        images[f"{index}.png"] = buffer.getvalue()
    question = [*({"type": "image", "image": name} for name in images), {"type": "text", "text": "What do you see?"}]
    answer = [{"type": "text", "text": f"I see {len(sizes)} pictures of noise."}]
    messages = [{"role": "user", "content": question}, {"role": "assistant", "content": answer}]
    return {"__key__": f"row-{len(sizes)}", "json": {"messages": messages}, **images}


def encoder_of(family, folder):
    encoder = TaskEncoder.from_pretrained(folder)
    if family not in UNTILED:
        return encoder
    images = copy.copy(encoder.parts.image_processor)
    for name, value in UNTILED[family].items():
        setattr(images, name, value)
    return type(encoder)(dataclasses.replace(encoder.parts, image_processor=images))


def step(model, batch, **settings):
    """The loss, summed over tokens, the gradient of each parameter that has one, and the logits."""
    model.zero_grad(set_to_none=True)
    output, loss_func = forward_step(iter([batch]), model, **settings)
    loss, num_tokens, _ = loss_func(output)
    assert num_tokens == batch["num_loss_tokens"] > 0
    loss.backward()
    return loss.detach(), {name: p.grad for name, p in model.named_parameters() if p.grad is not None}, output.detach()


@pytest.fixture(scope="module")
def family(request):
    return request.param


@pytest.fixture(scope="module")
def case(family, processor_dir, family_model):
    """A family's encoder, model and rows; what the rows do in batches of their own: losses and gradients summed."""
    if family == "kimi_k25":
        pytest.importorskip("torchvision", reason="the Kimi image processor needs torchvision")
    return case_of(encoder_of(family, processor_dir(family)), family_model(family))


def case_of(encoder, model):
    rows = encoder.batch([encoder.encode_sample(row(sizes)) for sizes in SIZES])
    total, sums, logits, first_two = 0, {}, [], None
    for item in rows:
        loss, gradients, output = step(model, encoder.collate([item], layout="padded"))
        total = total + loss
        for name, gradient in gradients.items():
            sums[name] = sums[name] + gradient if name in sums else gradient
        logits.append(output[0])
        if len(logits) == 2:  # an image and none
            first_two = SimpleNamespace(loss=total, gradients=dict(sums))
    facts = {"loss": total, "gradients": sums, "logits": logits, "first_two": first_two}
    return SimpleNamespace(encoder=encoder, model=model, rows=rows, **facts)


def each(families):
    return pytest.mark.parametrize("family", families, indirect=True, scope="module")


def assert_same_training(got, case):
    loss, gradients, _ = got
    torch.testing.assert_close(loss, case.loss, rtol=1e-4, atol=0)
    assert gradients.keys() == case.gradients.keys()
    whole = torch.stack([gradient.norm() for gradient in case.gradients.values()]).norm()
    for name, gradient in case.gradients.items():
        error = (gradients[name] - gradient).norm()
        assert error <= 1e-4 * gradient.norm() + 1e-6 * whole, f"{name}: {error} of {gradient.norm()}"


def change_of_logits(case, batch):
    """The largest difference between this packed batch and its rows alone, past every check of forward_step."""
    columns = (next_token_targets(batch)[0] >= 0).nonzero()[:, 0]
    with torch.no_grad():
        logits = case.model(**hf_model_inputs(batch), logits_to_keep=columns).logits[0]
    return (logits - torch.cat(case.logits)).abs().max()


def packed_all_the_same(encoder, rows):
    """A packed batch of rows that their family does not pack."""
    free = copy.copy(encoder)
    free.family = dataclasses.replace(encoder.family, packing_leak="")
    return free.collate(rows, layout="packed")


def as_one_sample(batch):
    """The same packed row without its inner boundary marks."""
    length = batch["input_ids"].shape[1]
    ends = torch.tensor([0, length], dtype=torch.int32)
    positions = batch["position_ids"] if batch["position_ids"].ndim == 3 else torch.arange(length)[None]
    return batch | {"cu_seqlens_q": ends, "cu_seqlens_kv": ends, "position_ids": positions}


def test_every_processor_folder_has_its_step(shared_dir):
    folders = {path.parent.name for path in (shared_dir / "processors").glob("*/processor_config.json")}
    assert folders == {*PACKABLE, *LEAKING}


@each([*PACKABLE, *LEAKING])
def test_a_padded_batch_trains_as_its_rows_alone(family, case):
    batch = case.encoder.collate(case.rows, layout="padded")
    assert batch["padding_mask"].any()
    loss, gradients, _ = got = step(case.model, batch)
    assert loss.isfinite()
    assert loss > 0
    assert_same_training(got, case)
    assert all(gradient.isfinite().all() for gradient in gradients.values())
    idle = [name for name, p in case.model.named_parameters() if name not in gradients or not gradients[name].any()]
    assert [name for name in idle if not re.search(UNREAD.get(family, "^$"), name)] == []


@each(PACKABLE)
def test_a_packed_batch_trains_as_its_rows_alone(family, case):
    batch = case.encoder.collate(case.rows, layout="packed")
    assert len(batch["cu_seqlens_q"]) == 4
    assert_same_training(step(case.model, batch), case)
    assert change_of_logits(case, batch) < 1e-3
    assert change_of_logits(case, as_one_sample(batch)) > 0.1, "a leak must show, or the lines above prove nothing"


@each(PACKABLE)
def test_eager_attention_and_explicit_masks_train_alike(family, case):
    """With the test above these are all paths that a CPU can train on; flex attention has no backward there."""
    batch = case.encoder.collate(case.rows[:2], layout="packed", segment_multiple=4)
    case.model.set_attn_implementation("eager")
    try:
        assert_same_training(step(case.model, batch, attn="eager"), case.first_two)
    finally:
        case.model.set_attn_implementation("sdpa")
    if family in WINDOWED:
        with pytest.raises(CapabilityError, match="attends to a window in some layers"):
            step(case.model, batch, explicit_mask=True)
    else:
        assert_same_training(step(case.model, batch, explicit_mask=True), case.first_two)


@each(LEAKING)
def test_rows_that_would_mix_are_not_packed(family, case):
    why, what = LEAKING[family]
    with pytest.raises(CapabilityError, match=rf"family {family} cannot be packed: .*{why}.*layout='padded'"):
        case.encoder.collate(case.rows, layout="packed")
    packed = packed_all_the_same(case.encoder, case.rows)
    with pytest.raises(CapabilityError, match=rf'{family} has .*{what}.*layout="padded"'):
        forward_step(iter([packed]), case.model)
    assert change_of_logits(case, packed) > 0.1, "this model keeps packed rows apart: no need to refuse them"


@pytest.fixture(scope="module")
def gemma4_parts(processor_dir):
    return load_parts(processor_dir("gemma4"))


GEMMA4_LEAKS = [("vision", "two-way attention inside images"), ("all", "two-way attention inside images")]


@pytest.mark.parametrize(("attention", "why"), GEMMA4_LEAKS)
def test_the_configuration_says_which_gemma4_is_not_packed(attention, why, gemma4_parts):
    config = {"model_type": "gemma4", "text_config": {"use_bidirectional_attention": attention}}
    _, family = Gemma4TaskEncoder.settle(dataclasses.replace(gemma4_parts, config=config))
    assert why in family.packing_leak
    _, family = Gemma4TaskEncoder.settle(dataclasses.replace(gemma4_parts, config=config, image_processor=None))
    assert family.packing_leak == ""


def test_a_gemma4_that_reads_images_causally_is_packed(gemma4_parts, family_model):
    parts = dataclasses.replace(gemma4_parts, config={"model_type": "gemma4", "text_config": {"hidden_size": 32}})
    case = case_of(Gemma4TaskEncoder(parts), family_model("gemma4_causal"))
    batch = case.encoder.collate(case.rows, layout="packed")
    assert len(batch["cu_seqlens_q"]) == 4
    assert_same_training(step(case.model, batch), case)
    assert change_of_logits(case, batch) < 1e-3
    assert change_of_logits(case, as_one_sample(batch)) > 0.1


@each(["gemma3", "gemma4"])
def test_packs_of_text_or_of_one_sample_pass_the_model_side(family, case):
    for places in ([0], [1, 1]):
        rows = [case.rows[place] for place in places]
        batch = packed_all_the_same(case.encoder, rows)
        with torch.no_grad():
            output, _ = forward_step(iter([batch]), case.model)
        torch.testing.assert_close(output[0], torch.cat([case.logits[place] for place in places]), rtol=0, atol=1e-4)
