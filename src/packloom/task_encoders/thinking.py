"""A conversation and the thinking policy in; the conversation with its reasoning in the template's own place out."""

from __future__ import annotations

import dataclasses
from typing import Literal

from packloom.errors import CookError
from packloom.task_encoders.family import THINK, Thinking
from packloom.task_encoders.template import ChatTemplate
from packloom.types import ChatSample, Message, Part, TextPart


def settle_reasoning(
    chat: ChatSample, thinking: Thinking, policy: Literal["keep", "drop", "supervise"], *, rendered: bool
) -> ChatSample:
    """Move reasoning that stands inline at the start of an answer into ``Message.reasoning``, or drop it by policy.

    ``rendered`` says whether the template writes reasoning; it then cuts inline marks out of the text by itself, and
    done here the skeleton sees it. Else inline reasoning is text like any other: it is trained on, dropped, or refused
    under "keep", for it cannot be told from the answer there.

    Raises CookError for a turn that has both kinds, whose inline thought is never closed, or that "drop" empties.
    """
    messages = tuple(
        _settle(message, thinking, policy, rendered) if message.role == "assistant" else message
        for message in chat.messages
    )
    return chat if messages == chat.messages else dataclasses.replace(chat, messages=messages)


def _settle(message: Message, thinking: Thinking, policy: str, rendered: bool) -> Message:
    parts, reasoning = message.parts, message.reasoning
    first = parts[0] if parts else None
    inline = isinstance(first, TextPart) and first.text.lstrip().startswith(thinking.open)
    if reasoning is None and not inline:
        _refuse_others_marks(first, thinking, policy)
        return message
    if inline and not rendered and policy == "keep":
        raise CookError(
            "thinking='keep' cannot be honoured: this template writes no reasoning, so it stands inside the answer",
            code="thinking.inline",
            hint="set thinking='supervise' or 'drop'",
        )
    if inline and isinstance(first, TextPart) and (rendered or policy == "drop"):
        inside, after = _cut(first.text.lstrip(), thinking)
        if reasoning:
            raise CookError("an answer has reasoning both inline and beside the text", code="thinking.twice")
        reasoning, parts = inside, (TextPart(text=after), *parts[1:])
    if policy == "drop" and reasoning:
        reasoning = None
        if not message.tool_calls and not any(not isinstance(p, TextPart) or p.text.strip() for p in parts):
            raise CookError("without its reasoning the answer is empty", code="thinking.nothing_left")
    blank = reasoning is None or not reasoning.strip()
    return dataclasses.replace(message, parts=parts, reasoning=None if blank else reasoning)


def _refuse_others_marks(first: Part | None, thinking: Thinking, policy: str) -> None:
    """Reasoning in marks that are not the family's is text to it: what is not to be trained on would be."""
    foreign = policy != "supervise" and thinking.open != THINK.open
    if foreign and isinstance(first, TextPart) and first.text.lstrip().startswith(THINK.open):
        raise CookError(
            f"an answer begins with {THINK.open!r}, but this family's reasoning stands between {thinking.open!r} and"
            f" {thinking.close!r}, so thinking={policy!r} would not see it",
            code="thinking.other_marks",
            hint="put it into reasoning_content, or write the family's marks",
        )


def _cut(text: str, thinking: Thinking) -> tuple[str, str]:
    inside, closed, after = text[len(thinking.open) :].partition(thinking.close)
    if not closed:
        raise CookError(f"an answer opens {thinking.open!r} and never closes it", code="thinking.unclosed")
    return inside.strip(), after.lstrip()


def renders_reasoning(template: ChatTemplate) -> bool:
    """Whether the template writes the reasoning of a last answer."""
    question = Message(role="user", parts=(TextPart(text="question"),))
    answer = Message(role="assistant", parts=(TextPart(text="answer"),), reasoning="a thought")
    try:
        return "a thought" in template.render(ChatSample(key="probe", messages=(question, answer)))
    except CookError:
        return False
