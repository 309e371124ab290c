"""PlainTemplate: what ``apply_chat_template`` renders, with and without the call."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from jinja2 import TemplateError
from tokenizers import Tokenizer, models
from transformers import PreTrainedTokenizerFast

from packloom import TaskEncoder
from packloom.errors import CookError
from packloom.task_encoders import plain_template
from packloom.task_encoders.plain_template import PlainTemplate
from packloom.testing.matrix import built_in_cases

TEMPLATE = "{% for m in messages %}{{ m.role }}:{{ m.content }}{{ m.name or '' }}{{ eos_token }};{% endfor %}{{ mood }}"
MESSAGES = [{"role": "user", "content": "Hi <b>"}, {"role": "assistant", "content": "é\n"}]
RENDERED = "user:Hi <b></s>;assistant:é\n</s>;calm"


class Shouting(PreTrainedTokenizerFast):
    """It renders in its own way."""

    def apply_chat_template(self, *args: Any, **options: Any) -> str:
        return str(super().apply_chat_template(*args, **options)).upper()


def plain(kind: type[PreTrainedTokenizerFast] = PreTrainedTokenizerFast) -> PlainTemplate:
    tokenizer = kind(tokenizer_object=Tokenizer(models.WordLevel({"</s>": 0}, unk_token="</s>")), eos_token="</s>")
    return PlainTemplate(tokenizer=tokenizer, chat_template=TEMPLATE, variables={"mood": "calm"})


@pytest.fixture
def no_call(monkeypatch: pytest.MonkeyPatch) -> Callable[[PlainTemplate], None]:
    """From now on a call fails."""

    def forbid(template: PlainTemplate) -> None:
        monkeypatch.setattr(template.tokenizer, "apply_chat_template", None)

    return forbid


def test_plain_messages_are_rendered_without_the_call(no_call: Callable[[PlainTemplate], None]) -> None:
    template = plain()
    assert template.render(MESSAGES) == RENDERED
    no_call(template)
    assert template.render(MESSAGES) == RENDERED
    for own in ({"reasoning_content": "Hm."}, {"tool_calls": [{"name": "f"}]}):
        with pytest.raises(TypeError):  # these are left to the call
            template.render([MESSAGES[0], {**MESSAGES[1], **own}])
    with pytest.raises(TypeError):
        template.render(MESSAGES, tools=[{"name": "f"}])


def test_a_tokenizer_that_renders_in_its_own_way_is_called() -> None:
    assert plain(Shouting).render(MESSAGES) == RENDERED.upper()


@pytest.mark.parametrize("compiled", [None, lambda text, mode: text])
def test_a_transformers_without_the_short_way_is_called(monkeypatch: pytest.MonkeyPatch, compiled: Any) -> None:
    monkeypatch.setattr(plain_template, "_compile", compiled)
    assert plain().render(MESSAGES) == RENDERED


def test_a_short_way_that_shows_something_else_is_not_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    compile_ = plain_template._compile
    monkeypatch.setattr(plain_template, "_compile", lambda text: compile_(text.replace("eos", "bos")))
    assert plain().render(MESSAGES) == RENDERED


@pytest.mark.parametrize("family", ["qwen2_5_vl", "qwen3_5", "internvl3", "mistral3", "glm46v"])
def test_a_family_renders_what_its_tokenizer_does(family: str, encoder_of: Callable[..., TaskEncoder]) -> None:
    encoder = encoder_of(family)
    template, tokenizer = encoder.template, encoder.parts.tokenizer
    num_compared = 0
    for case in built_in_cases(encoder):
        chat = case.chat
        try:
            theirs = tokenizer.apply_chat_template(
                [template._message(message) for message in chat.messages],
                tools=[dict(tool) for tool in chat.tools] or None,
                chat_template=encoder.parts.chat_template,
                tokenize=False,
                **template.variables,
            )
        except (TemplateError, TypeError, ValueError):
            with pytest.raises(CookError):
                template.render(chat)
            continue
        assert template.render(chat) == theirs
        num_compared += 1
    assert num_compared > 50
    assert template._plain._is_direct
