"""The messages of a row enter, in any of their dialects, turns with normalised roles and ordered parts leave."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from packloom.errors import CookError
from packloom.task_encoders.cook_parts import MediaRef, check_text, read_part, short, split_markers
from packloom.types import MediaKind, Role, TextPart

ROLES: Mapping[str, Role] = {
    "system": "system",
    "developer": "system",
    "user": "user",
    "human": "user",
    "assistant": "assistant",
    "gpt": "assistant",
    "model": "assistant",
    "bot": "assistant",
    "chatgpt": "assistant",
    "tool": "tool",
    "tool_response": "tool",
    "function": "tool",
    "observation": "tool",
    "ipython": "tool",
}
_ROLE_KEYS = ("role", "from")
_CONTENT_KEYS = ("content", "value", "text")
_REASONING_KEYS = ("reasoning_content", "reasoning", "thinking")


@dataclass(frozen=True, kw_only=True, slots=True)
class Turn:
    """A message whose media are still references."""

    role: Role
    parts: tuple[TextPart | MediaRef, ...]
    tool_calls: tuple[Mapping[str, Any], ...] = ()
    reasoning: str | None = None
    loss: bool | None = None
    name: str | None = None
    tool_call_id: str | None = None


def read_turns(messages: object, markers: Collection[MediaKind]) -> list[Turn]:
    """The turns of ``messages``; in string content of user turns ``<kind>`` is a place, for each kind in ``markers``.

    As soon as one content is a list of typed parts, every text is literal. Keys whose value is None do not count.
    """
    if not isinstance(messages, list) or not messages:
        wanted = "a non-empty list of messages"
        raise CookError(f"the row needs {wanted}, got {short(messages)}", code="cook.messages")
    found = []
    for place, message in enumerate(messages):
        if not isinstance(message, Mapping):
            raise CookError(f"message {place} is {short(message)}, not an object", code="cook.messages")
        found.append({name: value for name, value in message.items() if value is not None})
    if any(isinstance(_one_of(message, _CONTENT_KEYS, place), list) for place, message in enumerate(found)):
        markers = ()
    return [_read_turn(message, place, markers) for place, message in enumerate(found)]


def _read_turn(message: Mapping[str, Any], place: int, markers: Collection[MediaKind]) -> Turn:
    role = _read_role(_one_of(message, _ROLE_KEYS, place), place)
    content = _one_of(message, _CONTENT_KEYS, place)
    tool_calls = _read_tool_calls(message.get("tool_calls"), place)
    reasoning = _read_reasoning(message, place)
    if role != "assistant" and (tool_calls or reasoning):
        name = "tool_calls" if tool_calls else "reasoning"
        reason = f"message {place} has {name}, but its role is {role!r}: only an assistant has those"
        raise CookError(reason, code="cook.role")
    if content is None and not tool_calls and not reasoning:
        raise CookError(f"message {place} ({role}) has no content", code="cook.content")
    return Turn(
        role=role,
        parts=_read_content(content, place, markers if role == "user" else ()),
        tool_calls=tool_calls,
        reasoning=reasoning,
        loss=_read_loss(message, role, place),
        name=check_text(message.get("name", ""), f"name of message {place}") or None,
        tool_call_id=check_text(message.get("tool_call_id", ""), f"tool_call_id of message {place}") or None,
    )


def _one_of(message: Mapping[str, Any], names: Sequence[str], place: int) -> Any:
    """The value under the one of ``names`` that the message has; None without any."""
    values = [message[name] for name in names if name in message]
    if len(values) > 1 and any(value != values[0] for value in values):
        raise CookError(f"message {place} has different values under {' and '.join(names)}", code="cook.content")
    return values[0] if values else None


def _read_role(tag: object, place: int) -> Role:
    role = ROLES.get(tag.strip().lower()) if isinstance(tag, str) else None
    if role is None:
        raise CookError(f"message {place} has the unknown role {tag!r}; known: {', '.join(ROLES)}", code="cook.role")
    return role


def _read_content(content: object, place: int, markers: Collection[MediaKind]) -> tuple[TextPart | MediaRef, ...]:
    if content is None:
        return ()
    if isinstance(content, str):
        return tuple(split_markers(check_text(content, f"message {place}"), markers))
    if not isinstance(content, list):
        reason = f"the content of message {place} is {short(content)}, neither a string nor a list of parts"
        raise CookError(reason, code="cook.content")
    parts = [read_part(part, f"part {number} of message {place}") for number, part in enumerate(content)]
    return tuple(part for part in parts if part != TextPart(text=""))


def _read_tool_calls(value: object, place: int) -> tuple[Mapping[str, Any], ...]:
    """The calls as own copies without None keys; arguments given as the JSON text of an object become that object."""
    if not value:
        return ()
    calls = _parsed(value) if isinstance(value, str) else value
    if not isinstance(calls, list) or not all(isinstance(call, Mapping) for call in calls):
        raise CookError(f"tool_calls of message {place} are {short(value)}, not a list of objects", code="cook.tools")
    return tuple(_plain_copy(_read_call(call), f"tool_calls of message {place}") for call in calls)


def _read_call(call: Mapping[str, Any]) -> dict[str, Any]:
    found = {name: value for name, value in call.items() if value is not None}
    if isinstance(found.get("function"), Mapping):
        found["function"] = _read_call(found["function"])
    arguments = found.get("arguments")
    if isinstance(arguments, str) and isinstance(parsed := _parsed(arguments), dict):
        found["arguments"] = parsed
    return found


def read_tools(value: object) -> tuple[Mapping[str, Any], ...]:
    """The tools that a row declares: a list of objects, or the JSON text of one."""
    if not value:
        return ()
    tools = _parsed(value) if isinstance(value, str) else value
    if not isinstance(tools, list) or not all(isinstance(tool, Mapping) for tool in tools):
        raise CookError(f"tools are {short(value)}, not a list of objects", code="cook.tools")
    return tuple(_plain_copy(tool, "tools") for tool in tools)


def _plain_copy(value: Mapping[str, Any], where: str) -> dict[str, Any]:
    """An own copy of plain JSON data, proved to be text that can be written."""
    try:
        text = json.dumps(dict(value), ensure_ascii=False)
    except (TypeError, ValueError) as error:
        raise CookError(f"{where} are not plain JSON data: {error}", code="cook.tools") from error
    copied: dict[str, Any] = json.loads(check_text(text, where))
    return copied


def _parsed(text: str) -> Any:
    """The value of a JSON text, None if it is not one."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None


def _read_reasoning(message: Mapping[str, Any], place: int) -> str | None:
    names = [name for name in _REASONING_KEYS if name in message]
    if not names:
        return None
    texts = {check_text(message[name], f"{name} of message {place}") for name in names}
    texts.discard("")
    if len(texts) > 1:
        reason = f"message {place} has different texts under {', '.join(_REASONING_KEYS)}"
        raise CookError(reason, code="cook.reasoning")
    return next(iter(texts), None)


def _read_loss(message: Mapping[str, Any], role: Role, place: int) -> bool | None:
    """``loss`` (a bool), or OpenAI's ``weight`` (0 or 1)."""
    values = [message[name] for name in ("loss", "weight") if name in message]
    if not values:
        return None
    if any(value not in (0, 1) or bool(value) != bool(values[0]) for value in values):
        raise CookError(f"loss of message {place} must be true or false, got {values}", code="cook.loss")
    if values[0] and role != "assistant":
        reason = f"message {place} asks for loss, but its role is {role!r}: only assistant turns are trained on"
        raise CookError(reason, code="cook.loss")
    return bool(values[0])
