"""Predicted token counts against what the image processor really makes, and the effect of pixel bounds."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from PIL import Image
from transformers import Qwen2VLImageProcessorPil

from packloom import TaskEncoder
from packloom.errors import ConfigError, MediaError, ProcessorError
from packloom.task_encoders.grid_images import GridImageRule

BOUNDS = [(3136, 200_704), (56 * 56, 28 * 28 * 16), (65_536, 65_536), (1, 10_000_000)]
EXTREMES = [(1, 1), (1, 200), (200, 1), (3000, 40), (40, 3000), (27, 28), (14, 14), (15, 2999), (41, 41), (70, 42)]


def processor_and_rule(bounds: tuple[int, int], patch_size: int) -> tuple[Qwen2VLImageProcessorPil, GridImageRule]:
    low, high = bounds
    images = Qwen2VLImageProcessorPil(size={"shortest_edge": low, "longest_edge": high}, patch_size=patch_size)
    rule = GridImageRule(
        placeholder="<i>", token="<i>", patch_size=patch_size, merge_size=2, min_pixels=low, max_pixels=high
    )
    return images, rule


def check(images: Qwen2VLImageProcessorPil, rule: GridImageRule, height: int, width: int) -> None:
    made = images(images=[Image.new("RGB", (width, height))], return_tensors="pt")
    layout = rule.measure(height, width)
    grid = made["image_grid_thw"][0].tolist()
    assert layout.grid_thw == tuple(grid)
    assert layout.num_patches == len(made["pixel_values"])
    assert layout.runs == (grid[1] * grid[2] // 4,)
    assert layout.token_grid == (1, grid[1] // 2, grid[2] // 2)


@pytest.mark.parametrize("patch_size", [14, 16])
@pytest.mark.parametrize("bounds", BOUNDS[:3])
@pytest.mark.parametrize(("height", "width"), EXTREMES)
def test_extreme_sizes_are_predicted(height, width, bounds, patch_size):
    check(*processor_and_rule(bounds, patch_size), height, width)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.integers(1, 600), st.integers(1, 600), st.sampled_from(BOUNDS[:3]), st.sampled_from([14, 16]))
def test_any_size_is_predicted(height, width, bounds, patch_size):
    if max(height, width) > 200 * min(height, width):
        width = height
    check(*processor_and_rule(bounds, patch_size), height, width)


def test_the_aspect_ratio_limit_is_the_processors():
    images, rule = processor_and_rule(BOUNDS[0], 14)
    check(images, rule, 1, 200)
    with pytest.raises(ValueError, match="aspect ratio"):
        images(images=[Image.new("RGB", (201, 1))])
    with pytest.raises(MediaError, match="201x1 is thinner than 200:1"):
        rule.measure(1, 201)


@pytest.mark.parametrize("family", ["qwen2_vl", "qwen2_5_vl", "qwen3_vl"])
def test_pixel_bounds_take_effect(family, encoder_of, chat_row):
    factor = {"qwen3_vl": 32}.get(family, 28)
    free = encoder_of(family)
    bounded = encoder_of(family, min_pixels=40 * factor**2, max_pixels=50 * factor**2)
    small, large = chat_row([(64, 64)]), chat_row([(700, 700)])

    counts = [bounded.encode_sample(row).media[0].num_tokens for row in (small, large)]
    assert 40 <= counts[0] <= 55
    assert 40 <= counts[1] <= 50
    assert free.encode_sample(small).media[0].num_tokens == (64 if family == "qwen3_vl" else 4)
    assert free.encode_sample(large).media[0].num_tokens > 400
    for row in bounded.batch([bounded.encode_sample(small), bounded.encode_sample(large)]):
        assert len(row.media_tensors["pixel_values"]) == row.sample.media[0].num_patches


def test_a_bound_of_none_keeps_the_processors_own(encoder_of):
    rule = encoder_of("qwen2_5_vl").image_rule
    assert (rule.min_pixels, rule.max_pixels) == (3136, 12_845_056)
    lowered = encoder_of("qwen2_5_vl", max_pixels=100_000, min_pixels=None).image_rule
    assert (lowered.min_pixels, lowered.max_pixels) == (3136, 100_000)


def test_contradicting_bounds_are_refused(processor_dir):
    with pytest.raises(ConfigError, match="min_pixels 3136 is above max_pixels 1000"):
        TaskEncoder.from_pretrained(processor_dir("qwen2_5_vl"), max_pixels=1000)


def test_a_bound_without_effect_is_found_at_construction(processor_dir, monkeypatch):
    def ignores_its_bounds(self, images, **_):
        return self.preprocess(images, size={"shortest_edge": 3136, "longest_edge": 12_845_056}, return_tensors="pt")

    kind = type(TaskEncoder.from_pretrained(processor_dir("qwen2_5_vl")).parts.image_processor)
    monkeypatch.setattr(kind, "__call__", ignores_its_bounds)
    with pytest.raises(ProcessorError, match="pixel bound has no effect"):
        TaskEncoder.from_pretrained(processor_dir("qwen2_5_vl"), max_pixels=50_000)
