"""What stands at the edge of what is trained on: blank turns, images beside calls, words that begin in a header."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from transformers import AutoTokenizer

from packloom import TaskEncoder
from packloom.errors import CookError, MaskError

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


@pytest.mark.parametrize("role", ["user", "assistant"])
def test_a_turn_between_two_images_is_no_part_of_them(role: str, encoder_of, picture) -> None:
    """In GLM three tokens lie between an image that ends a turn and one that begins the next."""
    image = [{"type": "image", "image": f"{number}.png"} for number in (0, 1)]
    first = {"role": role, "content": [{"type": "text", "text": "see"}, image[0]]}
    second = {"role": "user", "content": [image[1], {"type": "text", "text": "q2"}]}
    images = {f"{number}.png": picture(64, 64) for number in (0, 1)}
    encoder = encoder_of("glm46v", loss_on="all_text")
    lead = [ASK] if role == "assistant" else []
    spans = trained(encoder, *lead, first, second, {"role": "assistant", "content": "b"}, **images)
    assert spans[1] == "<|user|>\n"


@pytest.mark.parametrize("family", ["gemma3", "smolvlm", "llava_next"])
def test_a_message_that_says_nothing_is_rendered_as_the_template_does(family: str, encoder_of) -> None:
    messages = [{"role": "system", "content": ""}, ASK, {"role": "assistant", "content": "ans"}]
    [span] = trained(encoder_of(family), *messages)
    assert span.strip().startswith("ans")


@pytest.mark.parametrize("policy", ["keep", "drop"])
def test_reasoning_in_the_marks_of_other_families_is_refused_where_it_is_not_wanted(policy: str, encoder_of) -> None:
    talk = [ASK, {"role": "assistant", "content": "<think>why</think>ans"}]
    with pytest.raises(CookError, match=r"begins with '<think>'"):
        trained(encoder_of("gemma4", thinking=policy), *talk)
    assert trained(encoder_of("gemma4"), *talk)[0].startswith("<think>why</think>ans")
