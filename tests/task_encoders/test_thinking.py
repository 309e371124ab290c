"""Reasoning: supervised, kept as context or dropped; stripped from history without shifting a span."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from transformers import AutoTokenizer

from packloom import TaskEncoder
from packloom.config import SampleConfig
from packloom.errors import CookError, MaskError
from packloom.testing import check_masks


@dataclasses.dataclass(frozen=True)
class Marks:
    """What a family writes around reasoning, as far as it is trained on, and the marks of data that write it inline."""

    before: str
    behind: str
    open: str
    close: str
    end: str
    last: str = ""  # the terminator of the last turn, if another


FAMILIES = {
    "qwen3_5": Marks("", "\n</think>\n\n", "<think>", "</think>", "<|im_end|>"),
    "qwen3_vl_thinking": Marks("", "\n</think>\n\n", "<think>", "</think>", "<|im_end|>"),
    "glm46v": Marks("<think>", "</think>\n", "<think>", "</think>", "<|user|>", "<|endoftext|>"),
    "gemma4": Marks("<|channel>thought\n", "\n<channel|>", "<|channel>thought\n", "<channel|>", "<turn|>"),
}


@pytest.fixture
def thinker(encoder_of: Callable[..., TaskEncoder], shared_dir: Any) -> Callable[..., TaskEncoder]:
    """``thinker(family, policy)``; ``qwen3_vl_thinking`` is Qwen3-VL with the template of its thinking model."""

    def make(family: str, policy: str = "supervise") -> TaskEncoder:
        if family != "qwen3_vl_thinking":
            return encoder_of(family, thinking=policy)
        parts = encoder_of("qwen3_vl").parts
        template = shared_dir / "processors/_templates/original/Qwen-Qwen3-VL-8B-Thinking.jinja"
        thinking = dataclasses.replace(parts, chat_template=template.read_text(encoding="utf-8"))
        return type(encoder_of("qwen3_vl"))(thinking, config=SampleConfig(thinking=policy))  # type: ignore[arg-type]

    return make


def user(text: str) -> dict[str, Any]:
    return {"role": "user", "content": text}


def answer(text: str, reasoning: str | None = None, **more: Any) -> dict[str, Any]:
    return {"role": "assistant", "content": text, "reasoning_content": reasoning, **more}


def trained(encoder: TaskEncoder, *messages: dict[str, Any]) -> list[str]:
    sample = encoder.encode_sample({"__key__": "k", "json": {"messages": list(messages)}})
    tokens = zip(sample.input_ids.tolist(), sample.loss_mask.tolist(), strict=True)
    groups = itertools.groupby(tokens, key=lambda pair: pair[1])
    return [encoder.parts.tokenizer.decode([i for i, _ in group]) for yes, group in groups if yes]


def prompt(encoder: TaskEncoder, *messages: dict[str, Any]) -> str:
    """All that is read, as text."""
    sample = encoder.encode_sample({"__key__": "k", "json": {"messages": list(messages)}})
    return str(encoder.parts.tokenizer.decode(sample.input_ids))


LOST = r"drops the reasoning of this conversation.*set thinking='drop'"
TALK = [user("2*3?"), answer("6", "two threes"), user("4*5?"), answer("20", "four fives")]


@pytest.mark.parametrize("family", FAMILIES)
def test_the_last_thought_is_trained_on_and_history_is_stripped(family: str, thinker: Any) -> None:
    """The templates drop the reasoning of earlier turns: their spans stay where they are."""
    marks = FAMILIES[family]
    assert trained(thinker(family), *TALK) == [
        f"6{marks.end}",
        f"{marks.before}four fives{marks.behind}20{marks.last or marks.end}",
    ]
    assert "two threes" not in prompt(thinker(family), *TALK)


@pytest.mark.parametrize("family", FAMILIES)
def test_kept_thoughts_are_read_but_not_trained_on(family: str, thinker: Any) -> None:
    marks, encoder = FAMILIES[family], thinker(family, "keep")
    assert trained(encoder, *TALK) == [f"6{marks.end}", f"20{marks.last or marks.end}"]
    assert "four fives" in prompt(encoder, *TALK)
    assert prompt(encoder, *TALK) == prompt(thinker(family), *TALK)


@pytest.mark.parametrize("family", FAMILIES)
def test_dropped_thoughts_are_gone(family: str, thinker: Any) -> None:
    marks, encoder = FAMILIES[family], thinker(family, "drop")
    assert trained(encoder, *TALK) == [f"6{marks.end}", f"20{marks.last or marks.end}"]
    assert "four fives" not in prompt(encoder, *TALK)
    plain = [{name: value for name, value in turn.items() if name != "reasoning_content"} for turn in TALK]
    assert prompt(encoder, *TALK) == prompt(encoder, *plain)


@pytest.mark.parametrize("policy", ["supervise", "keep", "drop"])
@pytest.mark.parametrize("family", FAMILIES)
def test_inline_thoughts_are_the_same_as_thoughts_beside_the_text(family: str, policy: str, thinker: Any) -> None:
    marks, encoder = FAMILIES[family], thinker(family, policy)
    inline = [
        user("2*3?"),
        answer(f"{marks.open}two threes{marks.close}6"),
        user("4*5?"),
        answer(f"{marks.open}\nfour fives\n{marks.close}\n\n20"),
    ]
    assert trained(encoder, *inline) == trained(encoder, *TALK)
    assert prompt(encoder, *inline) == prompt(encoder, *TALK)


@pytest.mark.parametrize("policy", ["supervise", "keep", "drop"])
@pytest.mark.parametrize("family", FAMILIES)
def test_injected_empty_thoughts_belong_to_the_prompt(family: str, policy: str, thinker: Any) -> None:
    marks, encoder = FAMILIES[family], thinker(family, policy)
    spans = trained(encoder, user("2*3?"), answer("6"), user("4*5?"), answer("20"))
    assert spans == [f"6{marks.end}", f"20{marks.last or marks.end}"]


@pytest.mark.parametrize(
    ("family", "span"),
    [
        ("qwen3_5", "two threes\n</think>\n\n<|im_end|>"),
        ("qwen3_vl_thinking", "two threes\n</think>\n\n<|im_end|>"),
        ("glm46v", "<think>two threes</think><|endoftext|>"),
        ("gemma4", "<|channel>thought\ntwo threes\n<channel|><turn|>"),
    ],
)
def test_a_thought_without_an_answer(family: str, span: str, thinker: Any) -> None:
    marks = FAMILIES[family]
    assert trained(thinker(family), user("2*3?"), answer("", "two threes")) == [span]
    assert trained(thinker(family, "keep"), user("2*3?"), answer("", "two threes")) == [marks.last or marks.end]


@pytest.mark.parametrize("family", ["qwen3_5", "qwen3_vl_thinking", "glm46v"])
def test_a_thought_before_a_tool_call(family: str, thinker: Any) -> None:
    """Reasoning behind the last question is kept by these templates, in every turn of a tool loop."""
    call = {"type": "function", "function": {"name": "look_up", "arguments": {"place": "Oslo"}}}
    talk = [
        user("Weather?"),
        answer("", "I must look", tool_calls=[call]),
        {"role": "tool", "content": "3 degrees"},
        answer("Cold.", "three is cold"),
    ]
    first, second = trained(thinker(family), *talk)
    assert first.index("I must look") < first.index("look_up") < first.index("Oslo")
    assert second.index("three is cold") < second.index("Cold.")
    first, second = trained(thinker(family, "keep"), *talk)
    assert first.startswith("<tool_call>")
    assert "I must look" not in first
    assert second.startswith("Cold.")
    for spans in (trained(thinker(family), *talk), trained(thinker(family, "keep"), *talk)):
        assert not any("3 degrees" in span for span in spans)


def test_kimi_drops_all_reasoning_and_that_is_refused(processor_dir: Callable[[str], Path]) -> None:
    tokenizer = AutoTokenizer.from_pretrained(processor_dir("kimi_k25"))

    def kimi(policy: str) -> TaskEncoder:
        return TaskEncoder.from_processor(tokenizer, model_type="kimi_k25", thinking=policy)  # type: ignore[arg-type]

    for policy in ("supervise", "keep"):
        with pytest.raises(MaskError, match=LOST):
            trained(kimi(policy), *TALK)
    assert trained(kimi("drop"), *TALK) == ["6<|im_end|>", "20<|im_end|>"]
    assert prompt(kimi("drop"), *TALK).count("<think></think>") == 2


@pytest.mark.parametrize("family", ["qwen2_vl", "qwen2_5_vl", "qwen3_vl", "gemma3", "smolvlm", "llava", "internvl3"])
def test_reasoning_that_a_template_cannot_write_is_refused(family: str, encoder_of: Any) -> None:
    for policy in ("supervise", "keep"):
        with pytest.raises(MaskError, match=LOST):
            trained(encoder_of(family, thinking=policy), *TALK)
    assert len(trained(encoder_of(family, thinking="drop"), *TALK)) == 2


@pytest.mark.parametrize("family", FAMILIES)
def test_thoughts_that_cannot_be_told_are_refused(family: str, thinker: Any) -> None:
    marks = FAMILIES[family]
    with pytest.raises(CookError, match="never closes it") as error:
        trained(thinker(family), user("?"), answer(f"{marks.open}endless"))
    assert error.value.code == "thinking.unclosed"
    with pytest.raises(CookError, match="both inline and beside the text"):
        trained(thinker(family), user("?"), answer(f"{marks.open}a{marks.close}b", "c"))


@pytest.mark.parametrize("policy", ["supervise", "keep", "drop"])
@pytest.mark.parametrize("family", FAMILIES)
def test_the_case_matrix_under_every_policy(family: str, policy: str, thinker: Any) -> None:
    encoder = thinker(family, policy)
    text_only = type(encoder)(dataclasses.replace(encoder.parts, image_processor=None), config=encoder.config)
    report = check_masks(text_only)
    report.raise_if_failed()
    thoughts = next(group for group in report.groups() if group.name == "thought")
    assert thoughts.counts == {"ok": 6}


@pytest.mark.parametrize("policy", ["keep", "drop"])
@pytest.mark.parametrize("family", ["qwen3_vl", "glm4v"])
def test_the_policy_holds_for_inline_thoughts_of_any_template(family: str, policy: str, encoder_of: Any) -> None:
    """Not trained on, or refused: both keep what the user asked for."""
    try:
        spans = trained(encoder_of(family, thinking=policy), user("2*3?"), answer("<think>two threes</think>6"))
    except (MaskError, CookError):
        return
    assert "two threes" not in "".join(spans)


def test_a_blank_thought_is_no_thought(encoder_of: Any) -> None:
    for policy in ("supervise", "keep"):
        assert trained(encoder_of("gemma4", thinking=policy), user("?"), answer("x", "  ")) == ["x<turn|>"]
