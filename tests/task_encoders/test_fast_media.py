"""Images as bytes: after the table they are bit for bit what the processor makes, or the exact path is taken."""

from __future__ import annotations

import dataclasses
import io
import logging
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from packloom import TaskEncoder
from packloom.errors import CapabilityError, ConfigError
from packloom.pixels import decode_pixels
from packloom.task_encoders.fast_media import PatchBytes, ProcessorBytes, make_fast_media
from packloom.task_encoders.image_backends import backend_of, make_resize, on_backend, pixel_table
from packloom.task_encoders.images import decode_rgb
from packloom.task_encoders.media_choice import find_difference
from packloom.types import Media

PATCHES = ("qwen2_vl", "qwen2_5_vl", "qwen3_vl", "qwen3_5", "glm4v", "glm46v")
WHOLE = ("gemma3", "gemma4", "llava", "internvl3", "smolvlm")
ZERO_PADDED = ("pixtral", "mistral3", "llava_next", "llava_onevision")


def backend(name: str) -> Any:
    if name == "torchvision":
        pytest.importorskip("torchvision", reason="torchvision is not installed: compares with its image backend")
    return name


def noise(height: int, width: int, seed: int = 0) -> Image.Image:
    return Image.fromarray(np.random.default_rng(seed).integers(0, 256, (height, width, 3), dtype=np.uint8))


def made_by(encoder: TaskEncoder, image: Image.Image) -> torch.Tensor:
    fast = encoder.images.fast
    assert fast is not None
    tensors = fast.process([image], [encoder.image_rule.measure(image.height, image.width)])
    assert tensors["pixel_values"].dtype == torch.uint8
    return decode_pixels(tensors["pixel_values"], fast.table, frames=fast.frames)


def made_by_hf(encoder: TaskEncoder, image: Image.Image) -> torch.Tensor:
    return encoder.parts.image_processor(images=[[image]], return_tensors="pt")["pixel_values"]


@pytest.mark.parametrize("pixels", ["pil", "torchvision"])
@pytest.mark.parametrize("family", ["qwen2_5_vl", "qwen3_vl", "glm4v"])
@settings(max_examples=12, deadline=None)
@given(st.integers(1, 400), st.integers(1, 400), st.integers(0, 9))
def test_patches_of_any_size_equal_the_processors(encoder_of, family, pixels, height, width, seed):
    encoder = encoder_of(family, pixels=backend(pixels), max_pixels=300 * 300)
    if max(height, width) > 200 * min(height, width):
        height = width
    image = noise(height, width, seed)
    assert torch.equal(made_by(encoder, image), made_by_hf(encoder, image))


@pytest.mark.parametrize("pixels", ["pil", "torchvision"])
@pytest.mark.parametrize("size", [(1, 1), (28, 28), (56, 56), (57, 3000), (2000, 3000)], ids=str)
def test_extreme_sizes_equal_the_processors(encoder_of, size, pixels):
    encoder = encoder_of("qwen2_5_vl", pixels=backend(pixels), min_pixels=3136, max_pixels=1003520)
    image = noise(*size)
    assert torch.equal(made_by(encoder, image), made_by_hf(encoder, image))


@pytest.mark.parametrize("mode", ["1", "L", "LA", "P", "RGBA", "CMYK", "I;16", "YCbCr"])
def test_every_mode_goes_the_same_way(encoder_of, mode):
    """Both paths get the RGB pixels of one decoder."""
    encoder = encoder_of("qwen2_5_vl", max_pixels=300 * 300)
    source = noise(60, 90).convert("L") if mode == "I;16" else noise(60, 90)
    image = Image.fromarray(np.asarray(source).astype(np.uint16) * 257) if mode == "I;16" else source.convert(mode)
    file = io.BytesIO()
    image.save(file, format="TIFF" if mode in ("CMYK", "YCbCr") else "PNG")
    rgb = decode_rgb(Media(kind="image", name="0", data=file.getvalue()))
    assert torch.equal(made_by(encoder, rgb), made_by_hf(encoder, rgb))


@pytest.mark.parametrize("family", [*PATCHES, *WHOLE])
def test_the_fast_path_is_taken(encoder_of, family):
    fast = encoder_of(family).images.fast
    assert isinstance(fast, PatchBytes if family in PATCHES else ProcessorBytes)


@pytest.mark.parametrize("family", ZERO_PADDED)
def test_rows_that_are_joined_with_zeros_stay_exact(encoder_of, family):
    assert encoder_of(family).images.fast is None


def test_a_row_and_a_batch_are_an_eighth_of_the_floats(encoder_of, chat_row):
    encoder, exact = encoder_of("qwen2_5_vl"), encoder_of("qwen2_5_vl", media="exact_hf")
    assert exact.images.fast is None
    rows = [made.batch([made.encode_sample(chat_row([(120, 200), (64, 64)]))]) for made in (encoder, exact)]
    small, large = (row.media_tensors["pixel_values"] for [row] in rows)
    assert small.nbytes * 8 == large.nbytes
    packed = encoder.collate(rows[0], expand_pixels=False)
    assert packed["pixel_values"].nbytes == small.nbytes
    expected = exact.collate(rows[1])
    made = encoder.collate(rows[0])
    assert set(made) == set(expected)
    assert torch.equal(made["pixel_values"], expected["pixel_values"])
    assert "pixel_table" not in made


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize("frames", [0, 1, 2])
def test_bytes_and_table_make_the_cast_values(dtype, channels, frames):
    generator = torch.Generator().manual_seed(0)
    pixels = torch.randint(0, 256, (5, 3, 2, 4), dtype=torch.uint8, generator=generator)
    table = torch.randn(channels, 256, generator=generator)
    values = torch.stack([table[channel % channels][pixels[:, channel].long()] for channel in range(3)], dim=1)
    expected = values.repeat_interleave(frames, dim=1).reshape(5, -1) if frames else values
    assert torch.equal(decode_pixels(pixels, table, frames=frames, dtype=dtype), expected.to(dtype))


@pytest.mark.parametrize(
    "change",
    [
        {"image_mean": [0.1, 0.2, 0.3], "image_std": [0.9, 0.5, 0.7]},
        {"rescale_factor": 1 / 127.5},
        {"do_normalize": False},
        {"resample": 2},
        {"patch_size": 16},
        {"temporal_patch_size": 1},
    ],
    ids=lambda change: next(iter(change)),
)
def test_unusual_settings_are_followed(encoder_of, change):
    encoder = changed(encoder_of("qwen2_5_vl"), change)
    assert encoder.images.fast is not None
    image = noise(80, 130)
    assert torch.equal(made_by(encoder, image), made_by_hf(encoder, image))


@pytest.mark.parametrize("change", [{"do_resize": False}, {"do_rescale": False}, {"resample": 1}], ids=str)
def test_settings_beyond_it_take_the_exact_path(encoder_of, change):
    encoder = encoder_of("qwen2_5_vl")
    images = changed_images(encoder, change)
    with pytest.raises(CapabilityError, match=r"do_resize|do_rescale|LANCZOS"):
        make_fast_media(images, encoder.image_rule, "pil")


def changed_images(encoder: TaskEncoder, change: dict[str, Any]) -> Any:
    images = encoder.parts.image_processor
    return type(images).from_dict({**images.to_dict(), **change})


def changed(encoder: TaskEncoder, change: dict[str, Any]) -> TaskEncoder:
    parts = dataclasses.replace(encoder.parts, image_processor=changed_images(encoder, change))
    return type(encoder)(parts)


def test_a_processor_that_does_otherwise_is_noticed(encoder_of, caplog):
    """A subclass that brightens its pixels: no setting tells of it."""
    encoder = encoder_of("qwen2_5_vl", pixels="pil")

    class Brighter(type(encoder.parts.image_processor)):
        def normalize(self, *args: Any, **more: Any) -> Any:
            return super().normalize(*args, **more) + 0.01

    images = Brighter.from_dict(encoder.parts.image_processor.to_dict())
    with caplog.at_level(logging.WARNING):
        made = type(encoder)(dataclasses.replace(encoder.parts, image_processor=images))
    assert made.images.fast is None
    assert "media='exact_hf' is used" in caplog.text
    assert "in pixel_values: values differ by up to 0.01" in caplog.text


def test_the_backends_differ_and_each_is_told_apart(encoder_of):
    backend("torchvision")
    pil, torchvision = (encoder_of("qwen2_5_vl", pixels=name) for name in ("pil", "torchvision"))
    assert torchvision.images.fast is not None
    assert "values differ" in find_difference(torchvision.images.fast, pil.parts.image_processor, pil.image_rule)


def test_torchvisions_pixels_can_be_had_without_it(encoder_of, monkeypatch):
    """Where torchvision is installed, the pixels made without its processor equal those of it."""
    encoder = encoder_of("qwen2_5_vl", pixels="pil")
    images, rule = encoder.parts.image_processor, encoder.image_rule
    fast = make_fast_media(images, rule, "torchvision")
    pixels = decode_pixels(
        fast.process([noise(90, 70)], [rule.measure(90, 70)])["pixel_values"], fast.table, frames=fast.frames
    )
    ours = made_by_hf(encoder, noise(90, 70))
    assert pixels.shape == ours.shape
    assert not torch.equal(pixels, ours)
    assert (pixels - ours).abs().mean() < 0.02  # the same picture
    if (exact := on_backend(images, "torchvision")) is not None:
        assert find_difference(fast, exact, rule) == ""


def test_a_backend_that_cannot_be_had_is_an_error(encoder_of, monkeypatch):
    other = "pil" if backend_of(encoder_of("gemma3").parts.image_processor) == "torchvision" else "torchvision"
    monkeypatch.setattr("packloom.task_encoders.media_choice.on_backend", lambda images, name: None)
    with pytest.raises(CapabilityError, match=f"install {other}"):
        encoder_of("gemma3", pixels=other, max_length=99)


def test_a_backend_without_images_is_an_error(encoder_of):
    with pytest.raises(ConfigError, match="has no image processor"):
        TaskEncoder.from_processor(encoder_of("qwen2_5_vl").parts.tokenizer, model_type="qwen2_5_vl", pixels="pil")


def test_table_and_resize_of_plain_numbers(encoder_of):
    images = encoder_of("qwen3_vl", pixels="pil").parts.image_processor
    table = pixel_table(images, "pil")
    assert table.shape == (1, 256)  # mean and deviation are 0.5 in every channel
    assert table[0, [0, 255]].tolist() == [-1.0, 1.0]
    plain = Image.new("RGB", (40, 30), (10, 20, 30))
    for name in ("pil", "torchvision"):
        resized = make_resize(images, name)(plain, 64, 32)
        assert resized.shape[:2] == (64, 32)
        assert [np.unique(resized[..., channel]).tolist() for channel in range(3)] == [[10], [20], [30]]
