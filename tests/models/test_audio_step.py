"""A training step on audio: real models read the tensors, and a pack of mixed rows trains as the rows do alone."""

from __future__ import annotations

import dataclasses
import io
from typing import Any

import pytest
import torch
from PIL import Image

from packloom import TaskEncoder
from packloom.models import forward_step

pytest.importorskip("av", reason="PyAV is not installed: reads audio")

#: Of a small model: it hears, and reads images causally.
GEMMA4 = {"model_type": "gemma4", "text_config": {"use_bidirectional_attention": None}, "audio_config": {}}


@pytest.fixture(scope="module")
def hearing(audio_processor_dir, processor_dir):
    """``hearing(family)``: an encoder; the Qwen families have windows of 5 seconds, as the tiny models do."""
    made: dict[str, TaskEncoder] = {}

    def make(family: str) -> TaskEncoder:
        if family == "gemma4_audio":
            encoder = TaskEncoder.from_pretrained(processor_dir("gemma4"))
            made[family] = type(encoder)(dataclasses.replace(encoder.parts, config=GEMMA4))
        if family not in made:
            encoder = TaskEncoder.from_pretrained(audio_processor_dir(family))
            window = {"chunk_length": 5, "n_samples": 80_000, "nb_max_frames": 500}
            parts = dataclasses.replace(encoder.parts, audio_settings={**encoder.parts.audio_settings, **window})
            made[family] = type(encoder)(parts)
        return made[family]

    return make


@pytest.fixture
def rows(hearing, audio_row, sound):
    """``rows(family)``: an encoder, and its rows of text and audio; where it sees, of an image or a video too."""

    def make(family: str) -> Any:
        encoder = hearing(family)
        raws = [
            audio_row(sound(1.3), key="one"),
            audio_row(key="text"),
            audio_row(sound(0.31, seed=1), sound(2.0, seed=2), key="two"),
        ]
        if family != "qwen2_audio":
            buffer = io.BytesIO()
            Image.linear_gradient("L").resize((84, 56)).convert("RGB").save(buffer, "PNG")
            raws.append({**audio_row(sound(0.7, seed=3), key="mixed"), "9.png": buffer.getvalue()})
            raws[-1]["json"]["messages"][0]["content"].insert(1, {"type": "image", "image": "9.png"})
        if family == "qwen2_5_omni":
            frames = {f"frame{number}.png": buffer.getvalue() for number in range(4)}
            raws.append({**audio_row(sound(0.2, seed=4), key="video"), **frames})
            video = {"type": "video", "video": list(frames), "fps": 1}
            raws[-1]["json"]["messages"][0]["content"].insert(1, video)
        return encoder, encoder.batch([encoder.encode_sample(raw) for raw in raws])

    return make


@pytest.mark.parametrize("family", ["qwen2_audio", "qwen2_5_omni", "gemma4_audio"])
def test_a_pack_of_audio_and_text_trains_as_its_rows(family, rows, family_model, train_step) -> None:
    encoder, made = rows(family)
    model = family_model(family)
    alone = [train_step(model, encoder.collate([item], layout="padded")) for item in made]
    assert len({float(item[0]) for item in alone}) == len(made)
    loss, gradients = train_step(model, encoder.collate(made, layout="packed"))
    with torch.no_grad():
        output, loss_func = forward_step(iter([encoder.collate(made, layout="padded")]), model)
        padded = loss_func(output)[0]
    torch.testing.assert_close(loss, sum(item[0] for item in alone), rtol=1e-4, atol=0)
    torch.testing.assert_close(padded, loss, rtol=1e-4, atol=0)
    assert any("audio_tower.layers" in name for name in gradients)
    whole = torch.stack([gradient.norm() for gradient in gradients.values()]).norm()
    for name, gradient in gradients.items():
        expected = sum(item[1][name] for item in alone if name in item[1])
        assert (gradient - expected).norm() <= 1e-4 * expected.norm() + 1e-6 * whole, name


def test_what_is_heard_counts(hearing, audio_row, sound, family_model, train_step) -> None:
    """Two audios of one length in the other order give another loss: features go to their own places."""
    encoder = hearing("qwen2_audio")
    model = family_model("qwen2_audio")
    first, second = sound(1.0, seed=1), sound(1.0, rate=48_000, seed=2)
    losses = []
    for pair in ((first, second), (second, first)):
        [row] = encoder.batch([encoder.encode_sample(audio_row(*pair))])
        losses.append(float(train_step(model, encoder.collate([row]))[0]))
    assert abs(losses[0] - losses[1]) > 1e-4


def test_a_dummy_audio_runs_the_tower_and_trains_nothing(hearing, audio_row, family_model, train_step) -> None:
    encoder = hearing("qwen2_audio")
    model = family_model("qwen2_audio")
    made = encoder.batch([encoder.encode_sample(audio_row())])
    plain, _ = train_step(model, encoder.collate(made))
    loss, gradients = train_step(model, encoder.collate(made, dummy_media="per_batch"))
    torch.testing.assert_close(loss, plain)
    tower = [gradient for name, gradient in gradients.items() if "audio_tower.layers" in name]
    assert tower
    assert not any(gradient.any() for gradient in tower)
