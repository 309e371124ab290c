"""What stands at the edge of what is trained on: blank turns, images beside calls, words that begin in a header."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from transformers import AutoTokenizer

from packloom import TaskEncoder
from packloom.errors import MaskError

ASK = {"role": "user", "content": "q"}
CALL = {"type": "function", "function": {"name": "f", "arguments": {"x": 1}}}
HEAD = "{% for m in messages %}<|im_start|>{{ m.role }}\n"
PROMPT = "{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
OTHER_END = (
    HEAD
    + "{{ m.content }}{% for c in m.tool_calls or [] %}<call>{{ c.function.name }} {{ c.function.arguments | tojson }}"
    "</call>{% endfor %}{{ '<|endoftext|>' if m.tool_calls else '<|im_end|>' }}\n" + PROMPT
)
THOUGHT_BEHIND = (
    HEAD + "{{ m.content }}{% if m.reasoning_content %}\n<think>{{ m.reasoning_content }}</think>{% endif %}"
    "<|im_end|>\n" + PROMPT
)
OWN_MARKS = (
    HEAD + "{% if m.reasoning_content %}<reason>{{ m.reasoning_content }}</reason>\n{% endif %}{{ m.content }}"
    "<|im_end|>\n" + PROMPT
)


def trained(encoder: TaskEncoder, *messages: dict[str, Any], **parts: bytes) -> list[str]:
    sample = encoder.encode_sample({"__key__": "k", "json": {"messages": list(messages)}, **parts})
    tokens = zip(sample.input_ids.tolist(), sample.loss_mask.tolist(), strict=True)
    groups = itertools.groupby(tokens, key=lambda pair: pair[1])
    return [encoder.parts.tokenizer.decode([i for i, _ in group]) for yes, group in groups if yes]


@pytest.fixture
def on_template(processor_dir: Callable[[str], Path]) -> Callable[..., TaskEncoder]:
    tokenizer = AutoTokenizer.from_pretrained(processor_dir("qwen3_vl"))
    return lambda template, **more: TaskEncoder.from_processor(tokenizer, chat_template=template, **more)


@pytest.mark.parametrize("content", ["", " ", "A harbour"])
def test_a_span_never_runs_over_a_turn_even_if_it_is_blank(on_template: Callable[..., TaskEncoder], content) -> None:
    result = {"role": "tool", "name": "f", "tool_call_id": "1", "content": content}
    answer = {"role": "assistant", "content": "", "tool_calls": [CALL]}
    with pytest.raises(MaskError, match="holds a part of message 2"):
        trained(on_template(OTHER_END), ASK, answer, result, {"role": "assistant", "content": "done"})


@pytest.mark.parametrize("template", [THOUGHT_BEHIND, OWN_MARKS], ids=["behind", "own marks"])
def test_reasoning_that_cannot_be_told_apart_is_refused_as_context(on_template, template) -> None:
    answer = {"role": "assistant", "content": "ans", "reasoning_content": "why"}
    with pytest.raises(MaskError, match="cannot tell the reasoning from the answer"):
        trained(on_template(template, thinking="keep"), ASK, answer)
    [span] = trained(on_template(template), ASK, answer)
    assert "why" in span
    assert "ans" in span


@pytest.mark.parametrize(
    ("family", "expected"),
    [
        ("glm46v", ["<think>thought</think>", "ans<|endoftext|>"]),
        ("qwen3_5", ["thought\n</think>", "ans<|im_end|>"]),
    ],
)
def test_an_image_leaves_the_end_of_a_thought_trained(family, expected, encoder_of, picture) -> None:
    parts = [{"type": "image", "image": "0.png"}, {"type": "text", "text": "ans"}]
    answer = {"role": "assistant", "content": parts, "reasoning_content": "thought"}
    assert trained(encoder_of(family), ASK, answer, **{"0.png": picture(64, 64)}) == expected


def test_an_image_leaves_a_call_trained(encoder_of, picture) -> None:
    parts = [{"type": "text", "text": "hello"}, {"type": "image", "image": "0.png"}]
    answer = {"role": "assistant", "content": parts, "tool_calls": [CALL]}
    call = "<tool_call>f\n<arg_key>x</arg_key>\n<arg_value>1</arg_value>\n</tool_call><|endoftext|>"
    assert trained(encoder_of("glm46v"), ASK, answer, **{"0.png": picture(64, 64)}) == ["hello", call]


def test_a_word_that_begins_in_the_header_is_no_target(encoder_of) -> None:
    messages = [{"role": "user", "content": "one two", "loss": False}, {"role": "assistant", "content": "fin"}]
    assert trained(encoder_of("llava", loss_on="all_text"), *messages) == ["<s> USER:", "ASSISTANT: fin</s>"]
