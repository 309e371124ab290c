"""A conversation in; the same with the words that its template reads and takes out in parts of their own, out."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterator, Sequence

from packloom.types import ChatSample, Message, Part, TextPart


def split_switches(chat: ChatSample, switches: Sequence[str]) -> ChatSample:
    """Mark ``switches`` such as "/no_think" as read by the template, in questions and system texts.

    They then belong to the conversation's shape: the skeleton is rendered with them, and is another one without.
    """
    if not switches:
        return chat
    pattern = re.compile(f"({'|'.join(map(re.escape, sorted(switches, key=len, reverse=True)))})")
    messages = tuple(
        dataclasses.replace(message, parts=tuple(_split(message, pattern)))
        if message.role in ("system", "user")
        else message
        for message in chat.messages
    )
    return dataclasses.replace(chat, messages=messages)


def _split(message: Message, pattern: re.Pattern[str]) -> Iterator[Part]:
    for part in message.parts:
        if not isinstance(part, TextPart) or not pattern.search(part.text):
            yield part
            continue
        for number, text in enumerate(pattern.split(part.text)):
            if text:
                yield TextPart(text=text, read=bool(number % 2))
