"""The Nemotron families: boundaries, thoughts, Omni's images against transformers' own, and what is refused."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image
from transformers import AutoTokenizer

from packloom import TaskEncoder
from packloom.errors import CapabilityError, MaskError, MediaError, ProcessorError
from packloom.task_encoders.nemotron import NemotronOmniTaskEncoder, NemotronVL2TaskEncoder
from packloom.task_encoders.nemotron_images import NemotronOmniImageRule
from packloom.task_encoders.processors import ProcessorParts, parts_of
from packloom.testing import check_masks
from packloom.types import EncodedSample

SPECIAL = ["<SPECIAL_10>", "<SPECIAL_11>", "<SPECIAL_12>", "<img>", "<image>", "</img>"]
SPECIAL += ["<so_start>", "<so_embedding>", "<so_end>"]
#: The image side of the model's template is not at hand: this one writes what its processor looks for.
WITH_IMAGES = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{% if m.role == 'assistant' %}<think></think>{% endif %}"
    "{% if m.content is string %}{{ m.content }}{% else %}{% for c in m.content %}"
    "{{ '<image>\n' if c.type == 'image' else c.text }}{% endfor %}{% endif %}<|im_end|>\n{% endfor %}"
)
TALK = [("user", "Q1"), ("assistant", "One"), ("user", "Q2"), ("assistant", "Two")]


@pytest.fixture(scope="module")
def tokenizer(processor_dir: Callable[[str], Path]) -> Any:
    tokenizer = AutoTokenizer.from_pretrained(processor_dir("qwen2_5_vl"), local_files_only=True)
    tokenizer.add_tokens(SPECIAL, special_tokens=True)
    tokenizer.add_tokens(["<think>", "</think>"])
    return tokenizer


@pytest.fixture
def template(shared_dir: Path) -> Callable[[str], str]:
    return lambda name: (shared_dir / f"processors/_templates/original/{name}.jinja").read_text(encoding="utf-8")


@pytest.fixture
def v2(tokenizer: Any, template: Callable[[str], str]) -> TaskEncoder:
    return NemotronVL2TaskEncoder(parts_of(tokenizer, chat_template=template("NVIDIA-Nemotron-Nano-v2")))


@pytest.fixture
def v3(tokenizer: Any, template: Callable[[str], str]) -> TaskEncoder:
    return NemotronOmniTaskEncoder(parts_of(tokenizer, chat_template=template("NVIDIA-Nemotron-3-Nano-30B-A3B-BF16")))


@pytest.fixture
def image_processor() -> Any:
    pytest.importorskip("torchvision", reason="the image processor of Nemotron-Omni needs torchvision")
    from transformers.models.nemotron_h_omni import (  # noqa: PLC0415 - after torchvision was made importable
        image_processing_nemotron_h_omni as omni,
    )

    return omni.NemotronH_Omni_Reasoning_V3ImageProcessor


def encoded(encoder: TaskEncoder, *messages: Any, **parts: bytes) -> EncodedSample:
    turns = [turn if isinstance(turn, dict) else {"role": turn[0], "content": turn[1]} for turn in messages]
    return encoder.encode_sample({"__key__": "k", "json": {"messages": turns}, **parts})


def spans(encoder: TaskEncoder, sample: EncodedSample) -> list[str]:
    tokens = zip(sample.input_ids.tolist(), sample.loss_mask.tolist(), strict=True)
    groups = itertools.groupby(tokens, key=lambda pair: pair[1])
    return [encoder.parts.tokenizer.decode([i for i, _ in group]) for yes, group in groups if yes]


def test_v2_turns(v2: TaskEncoder) -> None:
    sample = encoded(v2, ("system", "Be brief."), *TALK)
    assert v2.parts.tokenizer.decode(sample.input_ids) == (
        "<SPECIAL_10>System\nBe brief.\n\n<SPECIAL_11>User\nQ1\n<SPECIAL_11>Assistant\nOne\n<SPECIAL_12>\n"
        "<SPECIAL_11>User\nQ2\n<SPECIAL_11>Assistant\n<think>\nTwo\n<SPECIAL_12>\n"
    )
    assert spans(v2, sample) == ["One\n<SPECIAL_12>", "Two\n<SPECIAL_12>"]


def test_v2_reads_thoughts_behind_its_open_mark(v2: TaskEncoder) -> None:
    sample = encoded(v2, ("user", "Q"), ("assistant", "because</think>Two"))
    assert spans(v2, sample) == ["because</think>Two\n<SPECIAL_12>"]


SWITCHED = [
    ("/no_think", "Q", "", "Q", "<think></think>"),
    ("", "Q /no_think please", "", "Q  please", "<think></think>"),
    ("", "Q/think", "", "Q", "<think>\n"),
    ("Be brief. /no_think", "Q", "Be brief.", "Q", "<think></think>"),
    ("/no_think", "/think Q", "", "Q", "<think>\n"),
]


@pytest.mark.parametrize(("system", "user", "system_left", "user_left", "thought"), SWITCHED)
def test_v2_reads_its_switches(
    system: str, user: str, system_left: str, user_left: str, thought: str, v2: TaskEncoder
) -> None:
    sample = encoded(v2, *([("system", system)] if system else []), ("user", user), ("assistant", "One"))
    assert v2.parts.tokenizer.decode(sample.input_ids) == (
        f"<SPECIAL_10>System\n{system_left}\n\n<SPECIAL_11>User\n{user_left}\n"
        f"<SPECIAL_11>Assistant\n{thought}One\n<SPECIAL_12>\n"
    )
    assert spans(v2, sample) == ["One\n<SPECIAL_12>"]


def test_v2_switches_are_part_of_the_shape(v2: TaskEncoder) -> None:
    """One shape's skeleton is kept: a row with another switch must not be taken for it."""
    for text, thought in [("Q", "<think>\n"), ("Q /no_think", "<think></think>"), ("Q", "<think>\n")]:
        sample = encoded(v2, ("user", text), ("assistant", "One"))
        assert v2.parts.tokenizer.decode(sample.input_ids).endswith(f"Assistant\n{thought}One\n<SPECIAL_12>\n")


@pytest.mark.parametrize("text", ["Q /no/think_think", "Q /no_/thinkthink"])
def test_v2_refuses_a_switch_that_comes_of_another(text: str, v2: TaskEncoder) -> None:
    with pytest.raises(MaskError, match="treats something in it specially"):
        encoded(v2, ("user", text), ("assistant", "One"))


def test_v2_leaves_switches_in_answers(v2: TaskEncoder) -> None:
    sample = encoded(v2, ("user", "Q"), ("assistant", "Say /no_think."))
    assert spans(v2, sample) == ["Say /no_think.\n<SPECIAL_12>"]


def test_v2_has_no_images(tokenizer: Any, template: Callable[[str], str]) -> None:
    parts = parts_of(tokenizer, chat_template=template("NVIDIA-Nemotron-Nano-v2"))
    with pytest.raises(
        CapabilityError, match=r"no image processor for Nemotron-Nano-VL v2.*TaskEncoder.from_processor"
    ):
        NemotronVL2TaskEncoder(dataclasses.replace(parts, image_processor=object()))


def test_omni_turns_and_thoughts(v3: TaskEncoder) -> None:
    assert spans(v3, encoded(v3, *TALK)) == ["One<|im_end|>", "Two<|im_end|>"]
    thought = {"role": "assistant", "content": "One", "reasoning_content": "because"}
    assert spans(v3, encoded(v3, ("user", "Q"), thought)) == ["because\n</think>\nOne<|im_end|>"]
    sample = encoded(v3, ("user", "Q"), thought, ("user", "Q2"), {**thought, "content": "Two"})
    assert spans(v3, sample) == ["One<|im_end|>", "because\n</think>\nTwo<|im_end|>"]


def test_neither_is_packed(v2: TaskEncoder, v3: TaskEncoder) -> None:
    for encoder in (v2, v3):
        rows = encoder.batch([encoded(encoder, *TALK)])
        with pytest.raises(CapabilityError, match="Mamba"):
            encoder.collate(rows, layout="packed")
        assert encoder.collate(rows, layout="padded")["input_ids"].shape[0] == 1


SETTINGS: list[dict[str, Any]] = [
    {},
    {"max_num_patches": 0, "max_model_len": 300, "min_num_patches": 256},  # images share what the context leaves
    {"max_num_patches": 400, "min_num_patches": 16, "max_model_len": 64},
    {"downsample_ratio": 0.25, "max_num_patches": 600, "min_num_patches": 600},
]
SIZES = [(1, 1), (16, 16), (17, 31), (300, 451), (901, 77), (40, 1000), (512, 512)]


@pytest.mark.parametrize("settings", SETTINGS, ids=str)
def test_predicted_grids_are_the_processors(settings: dict[str, Any], image_processor: Any, tokenizer: Any) -> None:
    processor = image_processor(**settings)
    rule = NemotronOmniImageRule.from_parts(
        ProcessorParts(name="x", tokenizer=tokenizer, chat_template="", image_processor=processor)
    )
    for count in (1, 3):
        for sizes in itertools.islice(itertools.combinations_with_replacement(SIZES, count), 0, None, count):
            images = [Image.new("RGB", (width, height)) for height, width in sizes]
            made = processor(images=[images], return_tensors="pt")
            layouts = [rule.measure(*size, len(sizes)) for size in sizes]
            assert [rule.produced(made, n) for n in range(count)] == [rule.expected(layout) for layout in layouts]
            assert sum(layout.num_patches for layout in layouts) == made["pixel_values"].shape[0]


def test_an_image_that_is_too_thin_is_refused() -> None:
    rule = NemotronOmniImageRule(patch_size=16, merge_size=2, min_patches=16, max_patches=64, context_patches=640)
    with pytest.raises(MediaError, match="16000x8 pixels is too thin for 64 patches"):
        rule.measure(8, 16_000)


def test_omni_rows_with_images(image_processor: Any, tokenizer: Any, picture: Callable[[int, int], bytes]) -> None:
    processor = image_processor(min_num_patches=16, max_num_patches=256)
    parts = dataclasses.replace(parts_of(tokenizer, chat_template=WITH_IMAGES), image_processor=processor)
    encoder = NemotronOmniTaskEncoder(parts)
    content = [{"type": "image"}, {"type": "image"}, {"type": "text", "text": "Which?"}]
    sample = encoded(
        encoder, ("user", content), ("assistant", "Both."), **{"0.png": picture(64, 96), "1.png": picture(70, 33)}
    )
    assert spans(encoder, sample) == ["Both.<|im_end|>"]
    assert [medium.num_tokens for medium in sample.media] == [6, 6]
    text = encoder.parts.tokenizer.decode(sample.input_ids)
    assert f"<img>{'<image>' * 6}</img>\n<img>{'<image>' * 6}</img>\nWhich?" in text
    [row] = encoder.batch([sample])
    grids = row.media_tensors["image_grid_hw"]
    assert grids.tolist() == [[4, 6], [6, 4]]
    assert row.media_tensors["pixel_values"].shape == (48, 3 * 16 * 16)
    batch: Any = encoder.collate([row, row], layout="padded")
    assert torch.equal(batch["image_grid_hw"], torch.cat([grids, grids]))
    check_masks(encoder).raise_if_failed()


def test_omni_needs_a_template_that_writes_images(image_processor: Any, v3: TaskEncoder) -> None:
    with pytest.raises(ProcessorError, match="cannot tell where the assistant speaks"):
        NemotronOmniTaskEncoder(dataclasses.replace(v3.parts, image_processor=image_processor()))
