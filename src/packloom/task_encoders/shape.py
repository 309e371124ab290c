"""A conversation in; its shape, which is all that a chat template may branch on, out."""

from __future__ import annotations

from collections.abc import Hashable

from packloom.task_encoders.tool_data import tool_shape
from packloom.types import ChatSample, MediaPart, Part


def shape_of(chat: ChatSample) -> Hashable:
    """What a template may branch on: roles, kinds of parts, emptiness of texts; of tool data all but texts and values.

    Should it branch on more, a row's rendering is not the skeleton with its own texts, and is refused.
    """
    return (
        tool_shape(chat),
        tuple(
            (
                message.role,
                tuple(_kind_of(part) for part in message.parts),
                None if message.reasoning is None else _kind(message.reasoning),
            )
            for message in chat.messages
        ),
    )


def _kind_of(part: Part) -> str:
    if isinstance(part, MediaPart):
        return part.kind
    return f"read:{part.text}" if part.read else _kind(part.text)


def _kind(text: str) -> str:
    """A text with content is a marker; one of white space alone stands for itself."""
    return "text" if text.strip() else f"blank:{text}"
