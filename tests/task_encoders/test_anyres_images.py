"""LLaVA-NeXT's and OneVision's canvases and token counts against their processors, and OneVision's several images."""

from __future__ import annotations

import dataclasses
import math
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image
from transformers import LlavaNextProcessor, LlavaOnevisionProcessor
from transformers.image_processing_utils import select_best_resolution

from packloom.errors import CapabilityError, ProcessorError
from packloom.task_encoders.anyres_images import (
    AnyresImageRule,
    llava_next_image_rule,
    llava_onevision_image_rule,
)
from packloom.task_encoders.processors import load_parts

SIDE = st.one_of(st.integers(1, 40), st.integers(1, 5000))
PINPOINTS = [[336, 672], [672, 336], [672, 672], [1008, 336], [336, 1008]]
NEXT = AnyresImageRule(
    token="<i>",
    tile_height=336,
    tile_width=336,
    grid_height=24,
    grid_width=24,
    extra_tokens=0,
    canvases=tuple((height, width) for height, width in PINPOINTS),
)
SQUARES = [[384 * rows, 384 * columns] for rows in range(1, 7) for columns in range(1, 7)]
ONEVISION = AnyresImageRule(
    token="<i>",
    tile_height=384,
    tile_width=384,
    grid_height=27,
    grid_width=27,
    extra_tokens=0,
    canvases=tuple((height, width) for height, width in SQUARES),
    max_area=9,
    single_view_of_many=True,
)


def bare(kind: type, pinpoints: list[list[int]], **attributes: Any) -> Any:
    """A processor for its arithmetic alone."""
    processor = object.__new__(kind)
    processor.image_processor = SimpleNamespace(image_grid_pinpoints=pinpoints)
    for name, value in attributes.items():
        setattr(processor, name, value)
    return processor


@settings(max_examples=400, deadline=None)
@given(SIDE, SIDE, st.sampled_from([("default", 1, 0), ("full", 1, 1), ("full", 0, 0)]))
def test_llava_next_counts_as_its_processor(height, width, features):
    strategy, added, extra = features
    processor = bare(LlavaNextProcessor, PINPOINTS, patch_size=14, num_additional_image_tokens=added)
    theirs = processor._get_number_of_features(height, width, 336, 336) - (strategy == "default")
    assert dataclasses.replace(NEXT, extra_tokens=extra).measure(height, width).runs == (theirs,)


@settings(max_examples=400, deadline=None)
@given(SIDE, SIDE, st.sampled_from([1, 4, 9]))
def test_onevision_counts_as_its_processor(height, width, area):
    processor = bare(LlavaOnevisionProcessor, SQUARES, num_image_tokens=729, vision_aspect_ratio=f"anyres_max_{area}")
    theirs = processor._get_number_of_features(height, width, 384, 384)
    assert dataclasses.replace(ONEVISION, max_area=area).measure(height, width).runs == (theirs,)


@settings(max_examples=200, deadline=None)
@given(SIDE, SIDE)
def test_the_canvas_is_the_processors(height, width):
    canvas = select_best_resolution((height, width), SQUARES)
    assert ONEVISION.canvas(height, width) == canvas
    tiles = math.prod(canvas) // 384**2 + 1
    assert ONEVISION.measure(height, width).num_patches == tiles * 729


def test_counts_of_a_photo():
    layout = NEXT.measure(300, 451)
    # canvas 336 x 672, so 24 x 48 tile tokens; 451 / 300 · 24 = 36 columns are no padding, and each row has a newline
    assert layout.runs == (24 * 24 + 24 * (36 + 1),)
    assert layout.num_patches == 3 * 24 * 24


def test_each_of_several_onevision_images_is_one_view():
    layout = ONEVISION.measure(1000, 300, num_images=2)
    assert (layout.runs, layout.num_patches) == ((730,), 729)
    assert NEXT.measure(1000, 300, num_images=2) == NEXT.measure(1000, 300)


@pytest.mark.parametrize("sizes", [[(300, 200)], [(300, 200), (50, 900)], [(384, 384), (1, 1), (40, 30)]])
def test_onevision_samples_are_predicted_by_their_number_of_images(sizes, processor_dir):
    parts = load_parts(processor_dir("llava_onevision"))
    rule = llava_onevision_image_rule(parts)
    images = [Image.fromarray(np.full((*size, 3), 90 + index, dtype=np.uint8)) for index, size in enumerate(sizes)]
    tensors = dict(parts.image_processor(images=[images], return_tensors="pt"))
    assert tensors["batch_num_images"].tolist() == [len(sizes)]
    for index, size in enumerate(sizes):
        assert rule.expected(rule.measure(*size, num_images=len(sizes))) == rule.produced(tensors, index)


def test_a_wrong_number_of_images_or_tiles_is_found(processor_dir):
    parts = load_parts(processor_dir("llava_onevision"))
    rule = llava_onevision_image_rule(parts)
    images = [Image.new("RGB", (200, 300)), Image.new("RGB", (200, 300))]
    apart = dict(parts.image_processor(images=images, return_tensors="pt"))  # each as if alone in its sample
    assert rule.expected(rule.measure(300, 200, num_images=2)) != rule.produced(apart, 0)
    other = dataclasses.replace(rule, canvases=((384, 384),))
    tensors = dict(parts.image_processor(images=[images[:1]], return_tensors="pt", image_grid_pinpoints=[[768, 768]]))
    assert other.expected(other.measure(300, 200)) != other.produced(tensors, 0)


def test_a_black_tile_is_no_padding(processor_dir):
    parts = load_parts(processor_dir("llava_next"))
    rule = llava_next_image_rule(parts)
    images = [Image.new("RGB", (300, 200)), Image.new("RGB", (1000, 300), (255, 255, 255))]
    tensors = dict(parts.image_processor(images=[images], return_tensors="pt", **rule.call_options))
    for index, image in enumerate(images):
        assert rule.expected(rule.measure(image.height, image.width)) == rule.produced(tensors, index)


def changed(processor_dir, family, **settings):
    parts = load_parts(processor_dir(family))
    return dataclasses.replace(parts, settings={**parts.settings, **settings})


def test_an_unknown_aspect_rule_is_refused(processor_dir):
    with pytest.raises(CapabilityError, match="vision_aspect_ratio is 'square'; packloom knows 'anyres_max_<number>'"):
        llava_onevision_image_rule(changed(processor_dir, "llava_onevision", vision_aspect_ratio="square"))


def test_a_number_of_tokens_that_is_no_square_is_refused(processor_dir):
    with pytest.raises(ProcessorError, match="num_image_tokens 730 is no square number"):
        llava_onevision_image_rule(changed(processor_dir, "llava_onevision", num_image_tokens=730))


def test_the_feature_strategy_counts_the_class_token(processor_dir):
    full = llava_next_image_rule(changed(processor_dir, "llava_next", vision_feature_select_strategy="full"))
    default = llava_next_image_rule(changed(processor_dir, "llava_next"))
    assert full.measure(336, 336).runs[0] == default.measure(336, 336).runs[0] + 1
