"""What a template must write of tools and calls: each thing left out is noticed, whatever else it writes."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from transformers import AutoTokenizer, PreTrainedTokenizerBase

from packloom import TaskEncoder
from packloom.errors import CookError, MaskError
from packloom.types import ChatSample, Message, TextPart


@pytest.fixture(scope="module")
def tokenizer(processor_dir: Callable[[str], Path]) -> PreTrainedTokenizerBase:
    return AutoTokenizer.from_pretrained(processor_dir("qwen3_vl"))


@pytest.fixture
def encoder(tokenizer: PreTrainedTokenizerBase) -> Callable[..., TaskEncoder]:
    """``encoder(tools, call)``: ChatML turns with these bodies for a tool and for a call."""

    def make(tools: str = "{{ t | tojson }}", call: str = "{{ c | tojson }}", **settings: Any) -> TaskEncoder:
        template = (
            "{% for t in tools or [] %}<|im_start|>system\n" + tools + "<|im_end|>\n{% endfor %}"
            "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.reasoning_content or '' }}{{ m.content }}"
            "{% for c in m.tool_calls or [] %}<tool_call>" + call + "</tool_call>{% endfor %}<|im_end|>\n{% endfor %}"
            "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
        )
        return TaskEncoder.from_processor(tokenizer, model_type="a_model", chat_template=template, **settings)

    return make


def chat(*messages: Message, tools: tuple[dict[str, Any], ...] = ()) -> ChatSample:
    return ChatSample(key="k", messages=(said("user", "q"), *messages), tools=tools)


def said(role: Any, text: str, **more: Any) -> Message:
    return Message(role=role, parts=(TextPart(text=text),), **more)


def calling(arguments: Any, **more: Any) -> ChatSample:
    call = {"type": "function", "function": {"name": "look_up", "arguments": arguments}, **more}
    return chat(said("assistant", "See.", tool_calls=(call,)))


def spans(encoder: TaskEncoder, sample: ChatSample) -> list[str]:
    encoded = encoder.encode_sample(sample)
    tokens = zip(encoded.input_ids.tolist(), encoded.loss_mask.tolist(), strict=True)
    groups = itertools.groupby(tokens, key=lambda pair: pair[1])
    return [encoder.parts.tokenizer.decode([i for i, _ in group]) for yes, group in groups if yes]


ITEMS = "{{ c.function.name }}{% for k, v in c.function.arguments | items %}"
INCOMPLETE_CALLS = {
    "no arguments": ("{{ c.function.name }}", {"x": 0}),
    "no keys": (ITEMS + " {{ v }}{% endfor %}", {"x": "one"}),
    "no values": (ITEMS + " {{ k }}{% endfor %}", {"x": False}),
    "no texts": (ITEMS + " {{ k }}={{ v if v is not string }}{% endfor %}", {"x": "one"}),
    "no numbers": (ITEMS + " {{ k }}={{ v if v is string }}{% endfor %}", {"x": 3}),
    "nothing false": (ITEMS + " {{ k }}={{ v or '' }}{% endfor %}", {"x": False, "y": 1}),
    "no zero": (ITEMS + " {{ k }}={{ v or '' }}{% endfor %}", {"x": 0}),
    "no null": (ITEMS + " {{ k }}={{ v if v is not none }}{% endfor %}", {"x": None}),
    "no nested keys": (ITEMS + " {{ k }}={{ v.values() | list }}{% endfor %}", {"x": {"deep": 1}}),
    "the first of a list": (ITEMS + " {{ k }}={{ v[0] }}{% endfor %}", {"x": [1, True]}),
    "no name": ("{{ c.function.arguments | tojson }}", {"x": 1}),
    "capitals": (ITEMS + " {{ k }}={{ v | upper }}{% endfor %}", {"x": "Oslo"}),
    "objects only": ("{{ c.function.name }}{{ c.function.arguments if c.function.arguments is mapping }}", '{"x": 1}'),
    "the first call's": (
        "{{ c.function.name }}{% if loop.first %}{{ c.function.arguments | tojson }}{% endif %}",
        {"x": 1},
    ),
}


@pytest.mark.parametrize("name", INCOMPLETE_CALLS)
def test_a_call_that_is_written_in_part_is_noticed(name: str, encoder: Callable[..., TaskEncoder]) -> None:
    body, arguments = INCOMPLETE_CALLS[name]
    sample = calling(arguments)
    if name == "the first call's":
        first = sample.messages[1].tool_calls[0]
        sample = chat(said("assistant", "See.", tool_calls=(first, first)))
    with pytest.raises(MaskError) as error:
        spans(encoder(call=body), sample)
    assert error.value.code in {"template.tool_call_lost", "template.text_rewritten"}


WHOLE = {
    "t": 'a"b\\c\n',
    "i": -3,
    "f": 1.5e-7,
    "yes": True,
    "no": False,
    "null": None,
    "l": [[1, "x"], {"k": []}],
    "": "",
}


@pytest.mark.parametrize(
    "body", ["{{ c | tojson }}", "{{ c.function }}", "{{ c | tojson(ensure_ascii=True, indent=1) }}"]
)
def test_a_call_that_is_written_whole_is_trained_on(body: str, encoder: Callable[..., TaskEncoder]) -> None:
    [span] = spans(encoder(call=body), calling(WHOLE, id="call_1"))
    assert span.startswith("See.<tool_call>{")
    assert span.endswith("}</tool_call><|im_end|>")
    text = "{{ c.function.name }}({{ c.function.arguments }})"
    assert spans(encoder(call=text), calling('{"x": 1}')) == ['See.<tool_call>look_up({"x": 1})</tool_call><|im_end|>']


def test_an_id_that_a_result_repeats_is_no_call(encoder: Callable[..., TaskEncoder], tokenizer: Any) -> None:
    """The call is dropped; its id, which holds its name, is written beside the result."""
    template = (
        "{% for m in messages %}<|im_start|>{{ m.role }} {{ m.tool_call_id or '' }}\n{{ m.content }}<|im_end|>\n"
        "{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant \n{% endif %}"
    )
    made = TaskEncoder.from_processor(tokenizer, model_type="a_model", chat_template=template)
    called = calling({}, id="functions.look_up:0").messages[1]
    result = said("tool", "A harbour", tool_call_id="functions.look_up:0")
    with pytest.raises(MaskError, match="stands outside its span"):
        spans(made, chat(called, result, said("assistant", "Sea.")))


def test_a_row_is_proved_itself_not_only_its_shape(encoder: Callable[..., TaskEncoder]) -> None:
    """A template that drops one value: the shape is known from the row before."""
    made = encoder(call="{{ c.function.name }}{% if c.function.arguments.x != 'gone' %}{{ c | tojson }}{% endif %}")
    assert "kept" in spans(made, calling({"x": "kept"}))[0]
    assert "also" in spans(made, calling({"x": "also"}))[0]
    assert len(made.masks._plans) == len(encoder().masks._plans) + 1
    with pytest.raises(MaskError, match="rewrites the tool data"):
        spans(made, calling({"x": "gone"}))


def test_a_name_must_be_in_the_id_of_its_own_row(processor_dir: Callable[[str], Path]) -> None:
    """Kimi writes the id alone: that it holds the name was proved for another row of this shape."""
    tokenizer = AutoTokenizer.from_pretrained(processor_dir("kimi_k25"))
    kimi = TaskEncoder.from_processor(tokenizer, model_type="kimi_k25")
    assert "look_up" in spans(kimi, calling({"x": "1"}, id="functions.look_up:0"))[0]
    with pytest.raises(MaskError, match="drops the tool call 'look_up'"):
        spans(kimi, calling({"x": "1"}, id="functions.find:0"))


PARAMETER = {"type": "string", "description": "Where.", "enum": ["Oslo"]}
SCHEMA = {"type": "object", "properties": {"place": PARAMETER}, "required": ["place"], "additionalProperties": False}
TOOL = {"type": "function", "function": {"name": "look_up", "description": "Finds.", "parameters": SCHEMA}}
F, P = "t.function.", "t.function.parameters.properties"
INCOMPLETE_TOOLS = {
    "drops the tool 'look_up'": f"{{{{ {F}description }}}}{{{{ {P} }}}}",
    "drops the description of the tool": f"{{{{ {F}name }}}}{{{{ {P} }}}}",
    "drops a parameter of the tool": f"{{{{ {F}name }}}}{{{{ {F}description }}}}{{{{ {P}.values() | list }}}}",
    "drops a description in the parameter": f"{{{{ {F}name }}}}{{{{ {F}description }}}}"
    f"{{% for k, v in {P} | items %}}{{{{ k }}}} {{{{ v.type }}}} {{{{ v.enum }}}}{{% endfor %}}",
    "drops a choice in the parameter": f"{{{{ {F}name }}}}{{{{ {F}description }}}}"
    f"{{% for k, v in {P} | items %}}{{{{ k }}}} {{{{ v.type }}}} {{{{ v.description }}}}{{% endfor %}}",
    "drops the types of tool parameters": f"{{{{ {F}name }}}}{{{{ {F}description }}}}"
    f"{{% for k, v in {P} | items %}}{{{{ k }}}} {{{{ v.description }}}} {{{{ v.enum }}}}{{% endfor %}}",
}


@pytest.mark.parametrize("reason", INCOMPLETE_TOOLS)
def test_a_tool_that_is_written_in_part_is_noticed(reason: str, encoder: Callable[..., TaskEncoder]) -> None:
    with pytest.raises(MaskError, match=reason) as error:
        spans(encoder(tools=INCOMPLETE_TOOLS[reason]), chat(said("assistant", "a"), tools=(TOOL,)))
    assert error.value.code == "template.tool_call_lost"


def test_what_a_format_may_leave_out(encoder: Callable[..., TaskEncoder]) -> None:
    """Neither ``required`` nor ``additionalProperties`` is written here, and types are written in another language."""
    body = (
        f"{{{{ {F}name }}}}: {{{{ {F}description }}}}{{% for k, v in {P} | items %}} {{{{ k }}}}:"
        " {{ {'string': 'str', 'number': 'float', 'boolean': 'bool'}.get(v.type, 'list') }} ({{ v.description }})"
        " {{ v.enum }}{% endfor %}"
    )
    assert spans(encoder(tools=body), chat(said("assistant", "a"), tools=(TOOL,))) == ["a<|im_end|>"]


RICH = {
    "type": "function",
    "strict": True,
    "function": {
        "name": "book",
        "description": 'Books "a" table.\nSoon. ',
        "strict": False,
        "parameters": {
            "$schema": "https://json-schema.org/draft/2020-12/schema",
            "title": "Booking",
            "description": "All about it.",
            "type": "object",
            "additionalProperties": False,
            "required": ["name", "Guests", "when"],
            "properties": {
                "name": {"type": "string", "description": "Who.", "minLength": 1, "default": ""},
                "Guests": {"type": "integer", "description": "How many.", "enum": [1, 2], "nullable": False},
                "when": {
                    "type": "object",
                    "description": "When.",
                    "properties": {"day": {"type": "string", "enum": ["Mo", "Tu"]}, "hour": {"type": "number"}},
                    "required": ["day"],
                },
                "wishes": {
                    "type": "array",
                    "items": {"type": "object", "properties": {"type": {"type": "string", "description": "Kind."}}},
                },
                "note": {"anyOf": [{"type": "string"}, {"type": "null"}], "default": None},
                "tags": {"type": ["array", "null"], "items": {"type": "string", "format": "slug"}},
            },
        },
    },
}
FAMILIES = {
    "qwen3_vl": "qwen3_vl",
    "qwen3_5": "qwen3_5",
    "gemma4": "gemma4",
    "glm46v": "glm46v",
    "kimi_k25": "kimi_k25",
    "ministral3": "mistral3",
}


@pytest.mark.parametrize("folder", FAMILIES)
def test_no_real_template_refuses_a_rich_schema(folder: str, processor_dir: Callable[[str], Path]) -> None:
    made = TaskEncoder.from_processor(AutoTokenizer.from_pretrained(processor_dir(folder)), model_type=FAMILIES[folder])
    arguments = {"name": 'Åse "x"\n', "Guests": 2, "when": {"day": "Mo", "hour": 19.5}, "b": None, "A": [], "ok": True}
    call = {"type": "function", "id": "functions.book:0", "function": {"name": "book", "arguments": arguments}}
    called = Message(role="assistant", parts=(), tool_calls=(call,))
    result = said("tool", "Done.", tool_call_id="functions.book:0")
    found = spans(made, chat(called, result, said("assistant", "Booked."), tools=(RICH,)))
    assert len(found) == 2
    assert "19.5" in found[0]
    assert found[1].startswith("Booked.")


@pytest.mark.parametrize(
    ("call", "reason"),
    [
        ({"name": "f", "arguments": {1: 2}}, "keys must be strings"),
        ({"name": "f", "arguments": {"x": "\ud800"}}, "no valid Unicode"),
        ("f", "no function with a name"),
    ],
)
def test_calls_that_cannot_be_right_are_refused(call: Any, reason: str, encoder: Callable[..., TaskEncoder]) -> None:
    with pytest.raises(CookError, match=reason):
        spans(encoder(), chat(said("assistant", "a", tool_calls=(call,))))


def test_tool_data_nested_without_end_are_refused(encoder: Callable[..., TaskEncoder]) -> None:
    deep: list[Any] = []
    for _ in range(5000):
        deep = [deep]
    with pytest.raises(CookError, match="nested more than 64 deep"):
        spans(encoder(), calling({"x": deep}))


@pytest.mark.parametrize("policy", ["keep", "supervise"])
def test_a_thought_right_before_the_answer(policy: str, encoder: Callable[..., TaskEncoder]) -> None:
    """Nothing of the template stands between them."""
    sample = chat(said("assistant", " So.", reasoning="Hm."))
    assert spans(encoder(thinking=policy), sample) == [
        {"keep": " So.<|im_end|>", "supervise": "Hm. So.<|im_end|>"}[policy]
    ]
