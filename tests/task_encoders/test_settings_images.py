"""What image rules read from a processor, what they refuse, and GLM's pixel bounds."""

from __future__ import annotations

import dataclasses
import logging
from functools import cache
from types import SimpleNamespace
from typing import Any

import pytest
from PIL import Image

from packloom.errors import CapabilityError, ConfigError, ProcessorError
from packloom.task_encoders.anyres_images import llava_next_image_rule
from packloom.task_encoders.gemma3_images import Gemma3ImageRule
from packloom.task_encoders.gemma4_images import Gemma4ImageRule
from packloom.task_encoders.glm_images import glm_image_rule, glm_pixel_bounds
from packloom.task_encoders.internvl_images import InternVLImageRule
from packloom.task_encoders.llava_images import LlavaImageRule
from packloom.task_encoders.pixtral_images import PixtralImageRule
from packloom.task_encoders.processors import ProcessorParts, load_parts
from packloom.task_encoders.smolvlm_images import SmolVLMImageRule


@pytest.fixture(scope="session")
def changed(processor_dir) -> Any:
    """``changed("llava", settings={...}, size=...)``: a family's parts with other settings."""

    loaded = cache(lambda family: load_parts(processor_dir(family)))

    def make(family: str, settings: dict[str, Any] | None = None, **images: Any) -> ProcessorParts:
        parts = loaded(family)
        kind = type(parts.image_processor)
        image_processor = kind.from_dict({**parts.image_processor.to_dict(), **images}) if images else None
        return dataclasses.replace(
            parts,
            settings={**parts.settings, **(settings or {})},
            image_processor=image_processor or parts.image_processor,
        )

    return make


@pytest.mark.parametrize(
    ("rule", "family"),
    [
        (Gemma3ImageRule.from_parts, "gemma3"),
        (glm_image_rule, "glm4v"),
        (llava_next_image_rule, "llava_next"),
        (PixtralImageRule.from_parts, "pixtral"),
    ],
)
def test_a_missing_image_processor_is_refused(rule, family, changed):
    parts = dataclasses.replace(changed(family), image_processor=None)
    with pytest.raises(ProcessorError, match="no image processor was loaded"):
        rule(parts)


@pytest.mark.parametrize("value", [None, 0, 2.5, "14", True])
def test_a_setting_that_is_no_count_is_refused(value, changed):
    with pytest.raises(ProcessorError, match=r"the processor's patch_size is .*, expected a whole number above 0"):
        LlavaImageRule.from_parts(changed("llava", {"patch_size": value}))


def test_absent_settings_are_the_processor_classes_defaults(changed):
    def without(family: str, name: str) -> ProcessorParts:
        parts = changed(family)
        return dataclasses.replace(parts, settings={key: parts.settings[key] for key in parts.settings if key != name})

    assert Gemma3ImageRule.from_parts(changed("gemma3")).num_tokens == 256
    assert InternVLImageRule.from_parts(without("internvl3", "image_seq_length")).tokens_per_tile == 256
    assert SmolVLMImageRule.from_parts(without("smolvlm", "image_seq_len")).tokens_per_tile == 169
    assert PixtralImageRule.from_parts(without("mistral3", "spatial_merge_size")).merge_size == 1
    assert LlavaImageRule.from_parts(without("llava", "vision_feature_select_strategy")).extra_tokens == 1


def test_settings_change_the_layout(changed):
    assert Gemma3ImageRule.from_parts(changed("gemma3", {"image_seq_length": 64})).measure(9, 9).runs == (64,)
    assert SmolVLMImageRule.from_parts(changed("smolvlm", do_image_splitting=False)).measure(90, 90).runs == (64,)
    assert InternVLImageRule.from_parts(changed("internvl3", max_patches=1)).measure(90, 400).runs == (256,)
    assert Gemma4ImageRule.from_parts(changed("gemma4", max_soft_tokens=70)).measure(90, 90).runs == (64,)
    larger = changed("llava", crop_size={"height": 28, "width": 56})
    assert LlavaImageRule.from_parts(larger).measure(90, 90).runs == (8,)
    assert PixtralImageRule.from_parts(changed("pixtral", size={"longest_edge": 32})).measure(90, 90).runs == (2, 2)
    fixed = changed("pixtral", size={"height": 32, "width": 64})
    assert PixtralImageRule.from_parts(fixed).measure(90, 90).runs == (2, 2)


def test_a_size_that_depends_on_the_image_is_refused(changed):
    with pytest.raises(CapabilityError, match=r"the image processor's size is .*has a height and a width"):
        LlavaImageRule.from_parts(changed("llava", do_center_crop=False))


def test_unpadded_tiles_are_refused(changed):
    with pytest.raises(CapabilityError, match="do_pad is off"):
        SmolVLMImageRule.from_parts(changed("smolvlm", do_pad=False))


def test_a_tokenizer_without_the_named_token_is_refused(changed):
    parts = dataclasses.replace(changed("gemma3"), tokenizer=SimpleNamespace(image_token="<image_soft_token>"))
    with pytest.raises(ProcessorError, match="the tokenizer names no boi_token"):
        Gemma3ImageRule.from_parts(parts)


def test_pan_and_scan_in_the_settings_is_pointed_out(changed, caplog):
    parts = changed("gemma3", do_pan_and_scan=True)
    with caplog.at_level(logging.WARNING):
        rule = Gemma3ImageRule.from_parts(parts)
    assert "do_pan_and_scan is set" in caplog.text
    tensors = parts.image_processor(images=[[Image.new("RGB", (900, 300))]], return_tensors="pt", **rule.call_options)
    assert rule.expected(rule.measure(300, 900)) == rule.produced(dict(tensors), 0)


@pytest.mark.parametrize("family", ["glm4v", "glm46v"])
def test_glm_bounds_are_an_images_area(family, changed):
    parts = glm_pixel_bounds(changed(family), 40 * 784, 50 * 784)
    rule = glm_image_rule(parts)
    assert (rule.min_pixels, rule.max_pixels) == (2 * 40 * 784, 2 * 50 * 784)
    for size in [(30, 30), (700, 700), (300, 1100)]:
        layout = rule.measure(*size)
        tensors = dict(parts.image_processor(images=[Image.new("RGB", size[::-1])], return_tensors="pt"))
        assert 38 <= layout.runs[0] <= 55
        assert rule.expected(layout) == rule.produced(tensors, 0)


def test_a_glm_bound_of_none_keeps_the_processors_own(changed):
    rule = glm_image_rule(glm_pixel_bounds(changed("glm4v"), None, 100_000))
    assert (rule.min_pixels, rule.max_pixels) == (12_544, 200_000)
    assert glm_image_rule(glm_pixel_bounds(changed("glm4v"), None, None)) == glm_image_rule(changed("glm4v"))


def test_contradicting_glm_bounds_are_refused(changed):
    with pytest.raises(ConfigError, match="min_pixels 6272 is above max_pixels 1000: set both"):
        glm_pixel_bounds(changed("glm4v"), None, 1000)
