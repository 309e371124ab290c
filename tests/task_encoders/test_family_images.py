"""Every family's image rule against its whole Hugging Face processor: replacement text, tensors, keys, options."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
import transformers.models.smolvlm.processing_smolvlm as smolvlm_processing
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from PIL import Image
from transformers import Idefics3ImageProcessorPil, Idefics3Processor, ProcessorMixin

from packloom.task_encoders.anyres_images import llava_next_image_rule, llava_onevision_image_rule
from packloom.task_encoders.family import ImageLayout, ImageRule
from packloom.task_encoders.gemma3_images import Gemma3ImageRule
from packloom.task_encoders.gemma4_images import Gemma4ImageRule
from packloom.task_encoders.glm_images import glm_image_rule
from packloom.task_encoders.image_backends import on_backend
from packloom.task_encoders.internvl_images import InternVLImageRule
from packloom.task_encoders.kimi_images import KimiImageRule
from packloom.task_encoders.llava_images import LlavaImageRule
from packloom.task_encoders.pixtral_images import PixtralImageRule
from packloom.task_encoders.processors import ProcessorParts, load_parts, parts_of
from packloom.task_encoders.qwen_vl import qwen_image_rule
from packloom.task_encoders.smolvlm_images import SmolVLMImageRule

RULES: dict[str, Callable[[ProcessorParts], Any]] = {
    "gemma3": Gemma3ImageRule.from_parts,
    "gemma4": Gemma4ImageRule.from_parts,
    "glm4v": glm_image_rule,
    "glm46v": glm_image_rule,
    "internvl3": InternVLImageRule.from_parts,
    "kimi_k25": KimiImageRule.from_parts,
    "llava": LlavaImageRule.from_parts,
    "llava_next": llava_next_image_rule,
    "llava_onevision": llava_onevision_image_rule,
    "ministral3": PixtralImageRule.from_parts,
    "mistral3": PixtralImageRule.from_parts,
    "pixtral": PixtralImageRule.from_parts,
    "qwen3_5": qwen_image_rule,
    "smolvlm": SmolVLMImageRule.from_parts,
}
NEEDS_TORCHVISION = ("kimi_k25", "ministral3", "mistral3", "pixtral")
ONE_SIZE = ("gemma3", "llava")  # slow, and every image becomes the same
#: (height, width): smallest, thin, sides that may be taken for channels, tile borders, photos
SIZES = [(1, 1), (1, 200), (200, 1), (3000, 40), (40, 3000), (3, 150), (27, 28), (224, 224), (336, 672), (337, 671)]
SIZES += [(451, 300), (500, 333), (1025, 1023)]

#: media tokens of an image 451 wide and 300 high
PHOTO = {"gemma3": 256, "gemma4": 260, "glm4v": 176, "glm46v": 176, "internvl3": 7 * 256, "kimi_k25": 187}
PHOTO |= {"llava": 576, "llava_next": 1464, "llava_onevision": 1836, "ministral3": 187, "mistral3": 187}
PHOTO |= {"pixtral": 551, "qwen3_5": 126, "smolvlm": 13 * 64}
TOKEN_KEYS = {"input_ids", "attention_mask", "token_type_ids", "mm_token_type_ids"}

Whole = tuple[ProcessorParts, ImageRule, Any]


@pytest.fixture(scope="session")
def whole(processor_dir: Callable[[str], Path]) -> Callable[[str], Whole]:
    """``whole("gemma3")``: a family's parts, its rule, and the Hugging Face processor of the same parts."""

    @cache
    def load(family: str) -> Whole:
        if family in NEEDS_TORCHVISION:
            pytest.importorskip("torchvision", reason=f"the whole processor of {family} needs torchvision")
        parts = load_parts(processor_dir(family))
        return parts, RULES[family](parts), hugging_face_processor(parts)

    return load


def hugging_face_processor(parts: ProcessorParts) -> Any:
    """The family's own processor, without a video or audio part: those would need more libraries, and no image does."""
    kind = getattr(transformers, parts.processor_class)
    own = {"tokenizer": parts.tokenizer, "image_processor": parts.image_processor}
    plain = {name: value for name, value in parts.settings.items() if not isinstance(value, dict)}
    plain.pop("processor_class")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ProcessorMixin, "check_argument_for_proper_class", lambda *_: None)
        patch.setattr(smolvlm_processing, "num2words", str)  # only videos call it
        return kind(**{name: own.get(name) for name in kind.get_attributes()}, **plain)


def noise(height: int, width: int) -> Image.Image:
    pixels = np.random.default_rng(height * 10_007 + width).integers(0, 256, (height, width, 3), dtype=np.uint8)
    return Image.fromarray(pixels)


def expanded(layout: ImageLayout, token: str) -> str:
    """The layout's text with every media token written as often as its run says."""
    pieces = layout.text.split(token)
    assert len(pieces) == len(layout.runs) + 1
    return pieces[0] + "".join(token * run + piece for run, piece in zip(layout.runs, pieces[1:], strict=True))


def process(parts: ProcessorParts, rule: ImageRule, images: list[Image.Image]) -> dict[str, torch.Tensor]:
    return dict(parts.image_processor(images=[images], return_tensors="pt", **rule.call_options))


def check(whole: Whole, height: int, width: int) -> None:
    parts, rule, processor = whole
    layout = rule.measure(height, width)
    tensors = process(parts, rule, [noise(height, width)])
    assert expanded(layout, rule.token) == processor.replace_image_token(tensors, 0)
    assert rule.token * 2 not in layout.text
    assert rule.expected(layout) == rule.produced(tensors, 0)


@pytest.mark.parametrize("family", RULES)
def test_sizes_are_predicted(family, whole):
    for height, width in SIZES[:4] if family in ONE_SIZE else SIZES:
        check(whole(family), height, width)


#: multiples of patches, merged patches and tiles, and one pixel beside them
EDGES = [(56, 56), (65, 95), (447, 449), (513, 511), (384, 383)]


@pytest.mark.parametrize("backend", ["pil", "torchvision"])
@pytest.mark.parametrize("family", RULES)
def test_edges_are_predicted_on_both_backends(family, backend, whole):
    parts, rule, _ = whole(family)
    try:
        images = on_backend(parts.image_processor, backend)
    except ImportError:
        images = None
    if images is None:
        pytest.skip(f"the image processor of {family} cannot be had on {backend} here")
    other = dataclasses.replace(parts, image_processor=images)
    for height, width in EDGES[:2] if family in (*ONE_SIZE, "smolvlm") else EDGES:
        tensors = process(other, rule, [Image.new("RGB", (width, height), (90, 120, 150))])
        assert rule.expected(rule.measure(height, width)) == rule.produced(tensors, 0), (height, width)


@pytest.mark.parametrize("family", RULES)
def test_the_tokens_of_a_photo(family, whole):
    _, rule, _ = whole(family)
    assert sum(rule.measure(300, 451).runs) == PHOTO[family]


@pytest.mark.parametrize("family", sorted(set(RULES) - set(ONE_SIZE)))
@settings(max_examples=8, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.integers(1, 700), st.integers(1, 700))
def test_any_size_is_predicted(family, whole, height, width):
    check(whole(family), max(height, -(-width // 100)), max(width, -(-height // 100)))


@pytest.mark.parametrize("family", RULES)
def test_the_whole_processor_gives_the_same_tensors_and_tokens(family, whole):
    parts, rule, processor = whole(family)
    sizes = [(90, 60), (50, 110)]
    images = [noise(*size) for size in sizes]
    layouts = [rule.measure(*size, num_images=len(sizes)) for size in sizes]
    tensors = process(parts, rule, images)
    assert [rule.expected(layout) for layout in layouts] == [rule.produced(tensors, index) for index in (0, 1)]
    assert set(tensors) == {*rule.model_keys, *rule.helper_keys}

    text = f"Look: {rule.placeholder} and {rule.placeholder}, please."
    theirs = processor(images=[images], text=[text], return_tensors="pt")
    assert set(theirs) - set(rule.model_keys) <= TOKEN_KEYS
    for key in rule.model_keys:
        assert torch.equal(tensors[key], theirs[key]), key
    ours = text.replace(rule.placeholder, "{}").format(*(layout.text for layout in layouts))
    assert expand_ids(parts, rule, ours, layouts) == theirs["input_ids"][0].tolist()


def expand_ids(parts: ProcessorParts, rule: ImageRule, text: str, layouts: list[ImageLayout]) -> list[int]:
    """Compact text → ids, each media token repeated by its run."""
    ids = np.array(parts.tokenizer(text)["input_ids"])
    runs = np.ones(len(ids), dtype=np.int64)
    places = ids == parts.tokenizer.convert_tokens_to_ids(rule.token)
    runs[places] = [run for layout in layouts for run in layout.runs]
    return np.repeat(ids, runs).tolist()


@pytest.mark.parametrize("family", RULES)
def test_the_call_options_are_the_processor_classes_own(family, whole):
    _, rule, processor = whole(family)
    own = dict(class_options(processor))
    if family in ("pixtral", "mistral3", "ministral3"):
        own["patch_size"] = processor.patch_size * processor.spatial_merge_size  # set in its _process_images
    without_effect = {"return_tensors", "do_convert_rgb"}  # images are RGB when they come to the processor
    assert {name: rule.call_options[name] for name in set(rule.call_options) - without_effect} == {
        name: own[name] for name in set(own) - without_effect
    }


def class_options(processor: Any) -> dict[str, Any]:
    """The image options of a processor's class: an attribute of it, earlier a part of its keyword type."""
    if hasattr(processor, "images_kwargs"):
        return dict(processor.images_kwargs)
    return dict(processor.valid_processor_kwargs._defaults.get("images_kwargs", {}))


@pytest.mark.parametrize("family", RULES)
def test_a_loaded_processor_gives_the_same_rule_as_its_folder(family, whole):
    parts, rule, processor = whole(family)
    processor.chat_template = parts.chat_template
    assert RULES[family](parts_of(processor)) == rule


@pytest.mark.parametrize("family", RULES)
def test_the_template_prints_the_placeholder_once_for_an_image(family, whole):
    parts, rule, _ = whole(family)
    content = [{"type": "image"}, {"type": "text", "text": "What is it?"}]
    rendered = parts.tokenizer.apply_chat_template(
        [{"role": "user", "content": content}], chat_template=parts.chat_template, tokenize=False
    )
    assert rendered.count(rule.placeholder) == 1


def test_idefics3_follows_the_rule_of_smolvlm(processor_dir):
    tokenizer = load_parts(processor_dir("smolvlm")).tokenizer
    processor = Idefics3Processor(Idefics3ImageProcessorPil(), tokenizer, chat_template="{{ messages }}")
    parts = parts_of(processor)
    rule = SmolVLMImageRule.from_parts(parts)
    for height, width in [(300, 451), (40, 40), (900, 100)]:
        check((parts, rule, processor), height, width)
    assert rule.measure(300, 451).runs == (169,) * 13
