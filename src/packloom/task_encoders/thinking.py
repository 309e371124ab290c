"""A conversation and the thinking policy in; the conversation with its reasoning in the template's own place out."""

from __future__ import annotations

import dataclasses
from typing import Literal

from packloom.errors import CookError
from packloom.task_encoders.family import Thinking
from packloom.task_encoders.template import ChatTemplate
from packloom.types import ChatSample, Message, TextPart


def settle_reasoning(
    chat: ChatSample, thinking: Thinking | None, policy: Literal["keep", "drop", "supervise"]
) -> ChatSample:
    """Move reasoning that stands inline at the start of an answer into ``Message.reasoning``, or drop it by policy.

    A template that knows reasoning cuts inline marks out of the text by itself; done here, the skeleton sees it. With
    ``thinking`` None the template does not, and inline marks are text like any other.
    Raises CookError for a turn that has both, or whose inline thought is never closed.
    """
    messages = tuple(
        _settle(message, thinking, policy) if message.role == "assistant" else message for message in chat.messages
    )
    return chat if messages == chat.messages else dataclasses.replace(chat, messages=messages)


def _settle(message: Message, thinking: Thinking | None, policy: str) -> Message:
    parts, reasoning = message.parts, message.reasoning
    first = parts[0] if parts else None
    if thinking and isinstance(first, TextPart) and first.text.lstrip().startswith(thinking.open):
        inside, closed, after = first.text.lstrip()[len(thinking.open) :].partition(thinking.close)
        if not closed:
            raise CookError(f"an answer opens {thinking.open!r} and never closes it", code="thinking.unclosed")
        if reasoning:
            raise CookError("an answer has reasoning both inline and beside the text", code="thinking.twice")
        reasoning = inside.strip()
        parts = (TextPart(text=after.lstrip()), *parts[1:])
    if policy == "drop":
        reasoning = None
    return dataclasses.replace(message, parts=parts, reasoning=reasoning or None)


def renders_reasoning(template: ChatTemplate) -> bool:
    """Whether the template writes the reasoning of a last answer."""
    question = Message(role="user", parts=(TextPart(text="question"),))
    answer = Message(role="assistant", parts=(TextPart(text="answer"),), reasoning="a thought")
    try:
        return "a thought" in template.render(ChatSample(key="probe", messages=(question, answer)))
    except CookError:
        return False
