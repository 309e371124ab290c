"""What a cooker returned in; the same conversation, sound and with its media in the order of their places, out."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterator, Mapping
from typing import Any

from packloom.errors import ConfigError, CookError
from packloom.types import ChatSample, MediaPart, Message, TextPart

#: Tool data nested deeper are no use to a model, and an attack on whoever walks through them.
_DEEPEST = 64


def check_chat(chat: object) -> ChatSample:
    """Raises ConfigError if this is no ChatSample, CookError for texts, tools or media that cannot be right."""
    if not isinstance(chat, ChatSample):
        raise ConfigError(f"a cooker must return a ChatSample, got {type(chat).__name__}")
    if not chat.messages:
        raise CookError("the conversation has no messages", code="cook.messages")
    for text in _texts(chat):
        _check_unicode(text)
    for data in _tool_data(chat):
        _check_unicode(data)
    return _in_order(chat)


def function_of(item: Mapping[str, Any]) -> Mapping[str, Any]:
    """The function of a tool or of a call: under ``function``, or the item itself. Raises CookError."""
    function = item.get("function", item) if isinstance(item, Mapping) else None
    if not isinstance(function, Mapping) or not isinstance(function.get("name"), str) or not function["name"]:
        raise CookError(f"a tool or a call has no function with a name: {item!r:.120}", code="cook.tools")
    return function


def _texts(chat: ChatSample) -> Iterator[str]:
    for message in chat.messages:
        yield from (part.text for part in message.parts if isinstance(part, TextPart))
        yield from (text for text in (message.reasoning, message.name, message.tool_call_id) if text is not None)


def _check_unicode(text: str) -> None:
    try:
        text.encode("utf-8")
    except UnicodeEncodeError as error:
        raise CookError(f"a text is no valid Unicode: {error.reason}", code="cook.text") from error
    except AttributeError as error:
        raise CookError(f"a text is {type(text).__name__}, not a string", code="cook.text") from error


def _tool_data(chat: ChatSample) -> Iterator[str]:
    for item in (*chat.tools, *(call for message in chat.messages for call in message.tool_calls)):
        function_of(item)
        _check_plain(item, _DEEPEST)
        try:
            yield json.dumps(dict(item), ensure_ascii=False)
        except (TypeError, ValueError) as error:
            raise CookError(f"tool data are not JSON: {error}", code="cook.tools") from error


def _check_plain(value: object, depth: int) -> None:
    if not depth:
        raise CookError(f"tool data are nested more than {_DEEPEST} deep", code="cook.tools")
    if isinstance(value, Mapping):
        if any(not isinstance(key, str) for key in value):
            raise CookError(f"tool data are not JSON: keys must be strings, got {list(value)!r:.80}", code="cook.tools")
        for item in value.values():
            _check_plain(item, depth - 1)
    elif isinstance(value, (list, tuple)):
        for item in value:
            _check_plain(item, depth - 1)


def _in_order(chat: ChatSample) -> ChatSample:
    """``media`` in the order in which the parts place them; a medium that is placed twice stands there twice."""
    places = [part for message in chat.messages for part in message.parts if isinstance(part, MediaPart)]
    wanted = set(range(len(chat.media)))
    found = {place.index for place in places}
    if found != wanted:
        raise CookError(
            f"the parts place the media {sorted(found)}, but the sample has the media {sorted(wanted)}",
            code="cook.image_count",
        )
    for place in places:
        if chat.media[place.index].kind != place.kind:
            raise CookError(
                f"medium {place.index} is {chat.media[place.index].kind}, its place is for {place.kind}",
                code="cook.image_count",
            )
    if [place.index for place in places] == list(range(len(chat.media))):
        return chat
    numbers = iter(range(len(places)))
    messages = tuple(_renumbered(message, numbers) for message in chat.messages)
    return dataclasses.replace(chat, messages=messages, media=tuple(chat.media[place.index] for place in places))


def _renumbered(message: Message, numbers: Iterator[int]) -> Message:
    parts = tuple(
        dataclasses.replace(part, index=next(numbers)) if isinstance(part, MediaPart) else part
        for part in message.parts
    )
    return dataclasses.replace(message, parts=parts)
