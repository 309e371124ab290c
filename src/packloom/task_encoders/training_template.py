"""A chat template that drops reasoning and its family's edits in; the same template with all reasoning written, out."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

from packloom.errors import ConfigError, CookError, ProcessorError
from packloom.task_encoders.family import Family
from packloom.task_encoders.processors import ProcessorParts
from packloom.task_encoders.template import ChatTemplate, ContentForm
from packloom.types import ChatSample, Message, Role, TextPart

_CALL = {"type": "function", "id": "functions.probe:0", "function": {"name": "probe", "arguments": {"text": "value"}}}
_TOOL = {"type": "function", "function": {"name": "probe", "description": "A probe.", "parameters": {}}}
#: The shapes of conversations on which both templates must write the same: s, u, a, t: roles, c: an answer that calls.
_SHAPES = ("ua", "sua", "uaua", "suaua", "uau", "ucta", "uauctau", "uaucta", "uctactaua", "uaa", "cta")
_ROLES: dict[str, Role] = {"s": "system", "u": "user", "a": "assistant", "c": "assistant", "t": "tool"}


def with_training_template(parts: ProcessorParts, family: Family) -> ProcessorParts:
    """The parts as they are, unless packloom's training template was asked for.

    That is the processor's own with one of the family's edits. It is used only if it writes what the original does for
    conversations without reasoning, and the reasoning of every turn: raises ProcessorError else, and ConfigError for a
    family without edits.
    """
    if not parts.for_training:
        return parts
    if not family.training_edits:
        raise ConfigError(
            f"the family {family.name} has no training template: leave chat_template out, or pass a Jinja text"
        )
    fitting = [edit for edit in family.training_edits if parts.chat_template.count(edit.old) == 1]
    if not fitting:
        raise ProcessorError(
            f"{parts.name}: this chat template is not one that packloom has a training template for (it holds none of"
            f" {', '.join(repr(edit.old) for edit in family.training_edits)} once): pass a Jinja text as chat_template"
        )
    changed = parts.chat_template.replace(fitting[0].old, fitting[0].new)
    edited = dataclasses.replace(parts, chat_template=changed, for_training=False)
    _prove(parts, edited, family.content, dict(family.template_variables))
    return edited


def _prove(
    original: ProcessorParts, edited: ProcessorParts, content: ContentForm, variables: dict[str, object]
) -> None:
    before, after = (ChatTemplate(parts=p, content=content, variables=variables) for p in (original, edited))
    for chat in _probes(reasoning=False):
        if _rendered(before, chat) != _rendered(after, chat):
            raise ProcessorError(
                f"{original.name}: the training template writes another text than the original where there is no"
                " reasoning, so it was made for another version: pass a Jinja text as chat_template"
            )
    for chat in _probes(reasoning=True):
        rendered = _rendered(after, chat)
        lost = [
            message.reasoning for message in chat.messages if message.reasoning and message.reasoning not in rendered
        ]
        if rendered and lost:
            raise ProcessorError(f"{original.name}: the training template drops reasoning ({lost[0]!r})")


def _rendered(template: ChatTemplate, chat: ChatSample) -> str:
    """The rendering; "" where the template refuses the conversation."""
    try:
        return template.render(chat)
    except CookError:
        return ""


def _probes(*, reasoning: bool) -> Iterator[ChatSample]:
    for shape in _SHAPES:
        messages = tuple(
            Message(
                role=_ROLES[letter],
                parts=(TextPart(text=f"text {number}"),),
                reasoning=f"thought {number}" if reasoning and letter in "ac" else None,
                tool_calls=(_CALL,) if letter == "c" else (),
                tool_call_id="functions.probe:0" if letter == "t" else None,
                name="probe" if letter == "t" else None,
            )
            for number, letter in enumerate(shape)
        )
        yield ChatSample(key="probe", messages=messages, tools=(_TOOL,) if "c" in shape else ())
