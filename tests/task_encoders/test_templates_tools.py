"""Tools: calls are trained on whole, results never; a template that loses any of it makes the row an error."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from transformers import AutoTokenizer

from packloom import TaskEncoder
from packloom.errors import MaskError, SampleError
from packloom.task_encoders.family import Boundary
from packloom.task_encoders.skeleton import Skeleton, Slot
from packloom.task_encoders.turns import find_turns
from packloom.types import ChatSample, Message, Role, TextPart


def call(name: str = "look_up", arguments: dict[str, Any] | None = None, **more: Any) -> dict[str, Any]:
    return {"type": "function", "function": {"name": name, "arguments": arguments or {"place": "Oslo"}}, **more}


TOOL = {
    "type": "function",
    "function": {
        "name": "look_up",
        "description": "Finds a place.",
        "parameters": {"type": "object", "properties": {}},
    },
}
RESULT = {"role": "tool", "name": "look_up", "tool_call_id": "functions.look_up:0", "content": "A harbour"}
ASK = {"role": "user", "content": "Where?"}


def answer(text: str, *calls: dict[str, Any]) -> dict[str, Any]:
    return (
        {"role": "assistant", "content": text, "tool_calls": list(calls)}
        if calls
        else {"role": "assistant", "content": text}
    )


@pytest.fixture
def encoder(processor_dir: Callable[[str], Path]) -> Callable[..., TaskEncoder]:
    """``encoder(folder)`` on the tokenizer alone; ``template`` is a Jinja text or None."""

    def make(folder: str, model_type: str | None = None, template: str | None = None) -> TaskEncoder:
        tokenizer = AutoTokenizer.from_pretrained(processor_dir(folder))
        return TaskEncoder.from_processor(tokenizer, model_type=model_type or folder, chat_template=template)

    return make


def trained(encoder: TaskEncoder, *messages: dict[str, Any], tools: list[dict[str, Any]] | None = None) -> list[str]:
    sample = encoder.encode_sample({"__key__": "k", "json": {"messages": list(messages), "tools": tools}})
    tokens = zip(sample.input_ids.tolist(), sample.loss_mask.tolist(), strict=True)
    groups = itertools.groupby(tokens, key=lambda pair: pair[1])
    return [encoder.parts.tokenizer.decode([i for i, _ in group]) for yes, group in groups if yes]


CALLS = {
    "qwen3_vl": '<tool_call>\n{"name": "look_up", "arguments": {"place": "Oslo"}}\n</tool_call><|im_end|>',
    "qwen3_5": "<tool_call>\n<function=look_up>\n<parameter=place>\nOslo\n</parameter>\n</function>\n</tool_call>"
    "<|im_end|>",
    "glm46v": "<tool_call>look_up\n<arg_key>place</arg_key>\n<arg_value>Oslo</arg_value>\n</tool_call><|observation|>",
    "kimi_k25": "<|tool_calls_section_begin|><|tool_call_begin|>functions.look_up:0<|tool_call_argument_begin|>"
    '{"place": "Oslo"}<|tool_call_end|><|tool_calls_section_end|><|im_end|>',
    "gemma4": '<|tool_call>call:look_up{place:<|"|>Oslo<|"|>}<tool_call|><|tool_response>',
}


@pytest.mark.parametrize("family", CALLS)
def test_a_call_is_one_span_and_its_result_none(family: str, encoder: Callable[..., TaskEncoder]) -> None:
    talk = [ASK, answer("", call(id="functions.look_up:0")), RESULT, answer("By the sea.")]
    first, second = trained(encoder(family), *talk, tools=[TOOL])
    assert first == CALLS[family]
    assert second.startswith("By the sea.")
    sample = encoder(family).encode_sample({"__key__": "k", "json": {"messages": talk, "tools": [TOOL]}})
    text = encoder(family).parts.tokenizer.decode(sample.input_ids)
    assert "Finds a place." in text
    assert "A harbour" in text


@pytest.mark.parametrize("family", ["qwen3_vl", "qwen3_5", "glm46v", "kimi_k25"])
def test_several_calls_and_results(family: str, encoder: Callable[..., TaskEncoder]) -> None:
    two = [call(id="functions.look_up:0"), call(arguments={"place": "Bergen"}, id="functions.look_up:1")]
    spans = trained(encoder(family), ASK, answer("See.", *two), RESULT, RESULT, answer("Both."), ASK, answer("No."))
    assert len(spans) == 3
    assert spans[0].startswith("See.")
    assert spans[0].index("Oslo") < spans[0].index("Bergen")
    assert "harbour" not in "".join(spans)


@pytest.mark.parametrize("family", ["qwen3_vl", "qwen3_5", "glm46v", "kimi_k25"])
def test_a_question_behind_a_result(family: str, encoder: Callable[..., TaskEncoder]) -> None:
    spans = trained(encoder(family), ASK, answer("See.", call(id="functions.look_up:0")), RESULT, ASK, answer("No."))
    assert [span[:3] for span in spans] == ["See", "No."]


@pytest.mark.parametrize("family", ["qwen2_vl", "qwen2_5_vl", "internvl", "glm4v", "llava", "smolvlm"])
def test_a_template_that_drops_calls_makes_the_row_an_error(family: str, encoder: Callable[..., TaskEncoder]) -> None:
    folder = {"internvl": "internvl3"}.get(family, family)
    with pytest.raises(MaskError, match="drops the tool call 'look_up' of message 1"):
        trained(encoder(folder, family), ASK, answer("See.", call()))


@pytest.mark.parametrize("name", ["end", "user", "start"])
def test_a_dropped_call_is_noticed_whatever_its_name(name: str, encoder: Callable[..., TaskEncoder]) -> None:
    with pytest.raises(MaskError, match="drops the tool call"):
        trained(encoder("qwen2_5_vl"), ASK, answer("See.", call(name)), ASK, answer("Yes"))


def test_a_call_without_its_name_is_noticed(encoder: Callable[..., TaskEncoder]) -> None:
    with pytest.raises(MaskError, match="drops the tool call"):
        trained(encoder("kimi_k25"), ASK, answer("See.", call(id="call_1")), RESULT, answer("Yes"))


def test_dropped_arguments_are_noticed(encoder: Callable[..., TaskEncoder]) -> None:
    template = (
        "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content[0].text }}{% for c in m.tool_calls or [] %}"
        "<tool_call>{{ c.function.name }}</tool_call>{% endfor %}<|im_end|>\n{% endfor %}"
    )
    with pytest.raises(SampleError):
        trained(encoder("qwen3_vl", template=template), ASK, answer("See.", call()))


def test_arguments_cannot_open_a_span(encoder: Callable[..., TaskEncoder]) -> None:
    """A plain-text header spelled in a call's arguments moves the start of the span into them."""
    template = (
        "{% for m in messages %}{% if m.role == 'assistant' %}Bot> {{ m.content[0].text if m.content else '' }}"
        "{% for c in m.tool_calls or [] %}CALL {{ c.function | tojson }}{% endfor %}<|im_end|>\n"
        "{% else %}You> {{ m.content[0].text }}\n{% endif %}{% endfor %}{% if add_generation_prompt %}Bot> {% endif %}"
    )
    function = {"arguments": {"say": "Bot> hi"}, "name": "speak"}
    talk = [ASK, answer("", {"type": "function", "function": function}), ASK, answer("Yes")]
    try:
        first, _ = trained(encoder("qwen3_vl", "unknown", template), *talk)
    except MaskError:
        return
    assert first.strip() == 'CALL {"arguments": {"say": "Bot> hi"}, "name": "speak"}<|im_end|>'


@pytest.mark.parametrize("family", ["qwen2_5_vl", "gemma3", "llava", "smolvlm", "glm4v"])
def test_dropped_schemas_are_noticed(family: str, encoder: Callable[..., TaskEncoder]) -> None:
    with pytest.raises(SampleError):
        trained(encoder(family), ASK, answer("Yes"), tools=[TOOL])


def test_results_in_ministral(encoder: Callable[..., TaskEncoder]) -> None:
    spans = trained(encoder("ministral3", "mistral3"), ASK, answer("See.", call()), RESULT, answer("Sea."))
    assert spans == ['See.[TOOL_CALLS]look_up[ARGS]{"place": "Oslo"}</s>', "Sea.</s>"]


def test_results_in_glm_4_5v(encoder: Callable[..., TaskEncoder], shared_dir: Path) -> None:
    template = (shared_dir / "processors/_templates/original/zai-org-GLM-4.5V.jinja").read_text(encoding="utf-8")
    spans = trained(encoder("glm46v", template=template), ASK, answer("See.", call()), RESULT, answer("Sea."))
    assert spans[0].endswith("<|observation|>")
    assert spans[1] == "Sea.<|endoftext|>"


def test_parallel_calls_in_gemma4(encoder: Callable[..., TaskEncoder]) -> None:
    spans = trained(encoder("gemma4"), ASK, answer("", call(), call()), RESULT, RESULT, answer("Sea."))
    assert [span.count("call:look_up") for span in spans] == [2, 0]


def test_a_question_behind_a_result_where_two_headers_share_an_end() -> None:
    """As in Mistral: ``[/INST]`` and ``[/TOOL_RESULTS]`` both open turns that ``</s>`` ends; the nearest counts."""
    roles: list[Role] = ["user", "assistant", "tool", "user", "assistant"]
    sample = ChatSample(key="k", messages=tuple(Message(role=role, parts=(TextPart(text="x"),)) for role in roles))
    slots = [Slot(kind="text", message=number, part=0) for number in range(5)]
    marks = ("[INST]", "[/INST]", "</s>[TOOL_RESULTS]", "[/TOOL_RESULTS][INST]", "[/INST]", "</s>")
    pieces = [piece for pair in itertools.zip_longest(marks, slots) for piece in pair if piece is not None]
    boundaries = [Boundary(start=start, ends=("</s>",)) for start in ("[/INST]", "[/TOOL_RESULTS]")]
    spans = find_turns(Skeleton(pieces=tuple(pieces)), sample, boundaries)
    assert [(span.message, span.start.piece, span.end.piece) for span in spans] == [(1, 2, 4), (4, 8, 10)]


NAMES_ONLY = (
    "{% for t in tools or [] %}{{ t.function.name }} {% endfor %}"
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content[0].text if m.content else '' }}"
    "{% for c in m.tool_calls or [] %}<tool_call>{{ c.function.name }}</tool_call>{% endfor %}<|im_end|>\n{% endfor %}"
)


@pytest.mark.parametrize("arguments", [{"x": 3}, {"x": [True, None]}, "x=3"], ids=str)
def test_dropped_arguments_of_any_kind_are_noticed(arguments: Any, encoder: Callable[..., TaskEncoder]) -> None:
    one = {"type": "function", "function": {"name": "look_up", "arguments": arguments}}
    with pytest.raises(SampleError):
        trained(encoder("qwen3_vl", template=NAMES_ONLY), ASK, answer("See.", one))


def test_a_schema_cut_down_to_its_name_is_noticed(encoder: Callable[..., TaskEncoder]) -> None:
    with pytest.raises(SampleError):
        trained(encoder("qwen3_vl", template=NAMES_ONLY), ASK, answer("Yes"), tools=[TOOL])


def test_a_text_cannot_stand_in_for_a_dropped_call(encoder: Callable[..., TaskEncoder]) -> None:
    spelled = {"role": "user", "content": "".join(f"\ue000{number}\ue001" for number in range(9))}
    with pytest.raises(SampleError):
        trained(encoder("qwen2_5_vl"), spelled, answer("See.", call()))


def test_arguments_cannot_open_a_span_with_a_header_of_two_lines(encoder: Callable[..., TaskEncoder]) -> None:
    template = (
        "{% for m in messages %}{% if m.role == 'assistant' %}### Answer by:\nBot\n"
        "{{ m.content[0].text if m.content else '' }}"
        "{% for c in m.tool_calls or [] %}CALL {{ c.function.arguments.say }} {{ c.function.name }}{% endfor %}"
        "<|im_end|>\n{% else %}You> {{ m.content[0].text }}\n{% endif %}{% endfor %}"
        "{% if add_generation_prompt %}### Answer by:\nBot\n{% endif %}"
    )
    talk = [ASK, answer("", call("speak", {"say": "x ### Answer by:\nBot\n y"})), ASK, answer("Yes")]
    try:
        first, _ = trained(encoder("qwen3_vl", "unknown", template), *talk)
    except MaskError:
        return
    assert first == "CALL x ### Answer by:\nBot\n y speak<|im_end|>"
