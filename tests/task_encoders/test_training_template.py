"""Training templates: without reasoning they write what the originals write; with it, that of every turn."""

from __future__ import annotations

import dataclasses
import functools
import itertools
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from transformers import AutoTokenizer

from packloom import TaskEncoder
from packloom.errors import ConfigError, CookError, MaskError, ProcessorError
from packloom.task_encoders.cookers import cook
from packloom.task_encoders.family import TemplateEdit
from packloom.task_encoders.kimi import KimiK25TaskEncoder
from packloom.task_encoders.processors import parts_of
from packloom.testing import check_masks
from packloom.testing.matrix import golden_cases
from packloom.types import ChatSample, EncodedSample

#: template → (model type, a folder whose tokenizer fits, special tokens it lacks)
TEMPLATES = {
    "moonshotai-Kimi-K2.5": ("kimi_k25", "kimi_k25", ()),
    "Qwen-Qwen3-VL-8B-Thinking": ("qwen3_vl", "qwen3_vl", ()),
    "Qwen3.5-4B": ("qwen3_5", "qwen3_5", ()),
    "zai-org-GLM-4.5V": ("glm46v", "glm46v", ()),
    "zai-org-GLM-4.6V": ("glm46v", "glm46v", ()),
    "google-gemma-4-E4B-it": ("gemma4", "gemma4", ()),
    "NVIDIA-Nemotron-3-Nano-30B-A3B-BF16": ("nemotron_h_omni", "qwen3_vl", ("<img>", "<image>", "</img>")),
}


@pytest.fixture(scope="module")
def tokenizer_of(processor_dir: Callable[[str], Path], shared_dir: Path) -> Callable[[str], Any]:
    @functools.cache
    def make(name: str) -> Any:
        _, folder, special = TEMPLATES[name]
        tokenizer = AutoTokenizer.from_pretrained(processor_dir(folder), local_files_only=True)
        tokenizer.add_tokens(list(special), special_tokens=True)
        path = shared_dir / f"processors/_templates/original/{name}.jinja"
        tokenizer.chat_template = path.read_text(encoding="utf-8")
        return tokenizer

    return make


@pytest.fixture
def encoders(tokenizer_of: Callable[[str], Any]) -> Callable[[str], tuple[TaskEncoder, TaskEncoder]]:
    """``encoders(name)``: on the original template, and on the training template."""

    def make(name: str) -> tuple[TaskEncoder, TaskEncoder]:
        model_type, tokenizer = TEMPLATES[name][0], tokenizer_of(name)
        original = TaskEncoder.from_processor(tokenizer, model_type=model_type)
        return original, TaskEncoder.from_processor(tokenizer, model_type=model_type, chat_template="training")

    return make


def conversations(encoder: TaskEncoder, cases: list[dict[str, Any]]) -> Iterator[ChatSample]:
    yield from (case.chat for case in golden_cases(encoder))
    for case in cases:
        row = {"messages": case["messages"], "tools": case.get("tools")}
        if not case["images"]:
            try:
                yield cook({"__key__": case["id"], "json": json.dumps(row).encode()})
            except CookError:
                continue


def rendered(encoder: TaskEncoder, chat: ChatSample, **options: bool) -> str:
    try:
        return encoder.template.render(chat, **options)
    except CookError as error:
        return f"refused: {error.reason}"


@pytest.mark.parametrize("name", TEMPLATES)
def test_without_reasoning_the_rendering_is_the_originals(name: str, encoders: Any, cases: Any) -> None:
    original, training = encoders(name)
    assert original.template.parts.chat_template != training.template.parts.chat_template
    compared = 0
    for chat in conversations(original, cases):
        plain = all(message.reasoning is None and "think>" not in message.text for message in chat.messages)
        for prompt in (False, True):
            same = rendered(original, chat, add_generation_prompt=prompt) == rendered(
                training, chat, add_generation_prompt=prompt
            )
            assert same or not plain, chat
            compared += plain
    assert compared > 40


def talk(*, thoughts: bool) -> dict[str, Any]:
    messages: list[dict[str, Any]] = []
    for number in (1, 2):
        answer = {"role": "assistant", "content": f"A{number}"}
        thought = {"reasoning_content": f"R{number}"} if thoughts else {}
        messages += [{"role": "user", "content": f"Q{number}"}, {**answer, **thought}]
    return {"__key__": "k", "json": {"messages": messages}}


def spans(encoder: TaskEncoder, sample: EncodedSample) -> list[str]:
    tokens = zip(sample.input_ids.tolist(), sample.loss_mask.tolist(), strict=True)
    groups = itertools.groupby(tokens, key=lambda pair: pair[1])
    return [encoder.parts.tokenizer.decode([i for i, _ in group]) for yes, group in groups if yes]


SPANS = {
    "moonshotai-Kimi-K2.5": ["R1</think>A1<|im_end|>", "R2</think>A2<|im_end|>"],
    "Qwen-Qwen3-VL-8B-Thinking": ["R1\n</think>\n\nA1<|im_end|>", "R2\n</think>\n\nA2<|im_end|>"],
    "Qwen3.5-4B": ["R1\n</think>\n\nA1<|im_end|>", "R2\n</think>\n\nA2<|im_end|>"],
    "zai-org-GLM-4.5V": ["<think>R1</think>\nA1<|user|>", "<think>R2</think>\nA2<|endoftext|>"],
    "zai-org-GLM-4.6V": ["<think>R1</think>\nA1<|user|>", "<think>R2</think>\nA2<|endoftext|>"],
    "google-gemma-4-E4B-it": [
        "<|channel>thought\nR1\n<channel|>A1<turn|>",
        "<|channel>thought\nR2\n<channel|>A2<turn|>",
    ],
    "NVIDIA-Nemotron-3-Nano-30B-A3B-BF16": ["R1\n</think>\nA1<|im_end|>", "R2\n</think>\nA2<|im_end|>"],
}


@pytest.mark.parametrize("name", TEMPLATES)
def test_reasoning_of_every_turn_is_trained_on(name: str, encoders: Any) -> None:
    original, training = encoders(name)
    row = talk(thoughts=True)
    assert spans(training, training.encode_sample(row)) == SPANS[name]
    if name == "moonshotai-Kimi-K2.5":
        with pytest.raises(MaskError, match="drops the reasoning of this conversation"):
            original.encode_sample(row)
    else:
        assert "R1" not in original.parts.tokenizer.decode(original.encode_sample(row).input_ids)
    dropped = type(training)(training.parts, config=dataclasses.replace(training.config, thinking="drop"))
    without = original.encode_sample(talk(thoughts=False))
    assert dropped.encode_sample(row).input_ids.tolist() == without.input_ids.tolist()
    kept = type(training)(training.parts, config=dataclasses.replace(training.config, thinking="keep"))
    assert [text[:2] for text in spans(kept, kept.encode_sample(row))] == ["A1", "A2"]


@pytest.mark.parametrize("name", ["moonshotai-Kimi-K2.5", "zai-org-GLM-4.6V"])
def test_the_case_matrix(name: str, encoders: Any) -> None:
    _, training = encoders(name)
    report = check_masks(training)
    report.raise_if_failed()
    [thought] = [group.counts for group in report.groups() if group.name == "thought"]
    assert thought == {"ok": 6}


def test_a_family_without_one_says_so(processor_dir: Callable[[str], Path]) -> None:
    with pytest.raises(ConfigError, match="the family qwen2_5_vl has no training template"):
        TaskEncoder.from_pretrained(processor_dir("qwen2_5_vl"), chat_template="training")
    with pytest.raises(ProcessorError, match="not one that packloom has a training template for"):
        TaskEncoder.from_pretrained(processor_dir("qwen3_vl"), chat_template="training")  # the instruct template


@pytest.mark.parametrize(
    ("old", "new", "reason"),
    [
        (
            "for idx in range(messages|length-1, -1, -1) ",
            "for idx in range(messages|length-1, -1, -1)",
            "drops reasoning",
        ),
        ("<|im_user|>", "<|im_user|> ", "writes another text than the original"),
    ],
)
def test_an_edit_that_does_not_hold_is_refused(old: str, new: str, reason: str, tokenizer_of: Any) -> None:
    class Wrong(KimiK25TaskEncoder):
        """An edit that changes too little, or too much."""

        family = dataclasses.replace(KimiK25TaskEncoder.family, training_edits=(TemplateEdit(old=old, new=new),))

    parts = parts_of(tokenizer_of("moonshotai-Kimi-K2.5"), chat_template="training")
    with pytest.raises(ProcessorError, match=reason):
        Wrong(parts)
