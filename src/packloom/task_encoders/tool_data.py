"""The tool data of a conversation in (schemas, calls, names, ids), its texts and values as numbered leaves out.

A walk takes the same order every time, calls before schemas, so a leaf has the same number in every conversation of the
same structure.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from packloom.task_encoders.chat_checks import function_of
from packloom.types import ChatSample, Message

#: Keys that templates look up: they belong to the format and are no leaves. All other keys are data.
_WORDS = """additionalProperties allOf anyOf arguments const contains default definitions deprecated description else
    enum example examples exclusiveMaximum exclusiveMinimum format function id if index items maxItems
    maxLength maxProperties maximum minItems minLength minProperties minimum multipleOf name not nullable
    oneOf parameters pattern patternProperties prefixItems properties propertyNames readOnly required
    response return returns strict then title type uniqueItems writeOnly $defs $id $ref $schema"""
WORDS = frozenset(_WORDS.split())
#: Values of ``type`` on which templates branch.
_TYPES = "any array bool boolean date datetime dict file float function int integer list none null number object"
TYPES = frozenset([*_TYPES.split(), "str", "string", "tuple"])


@dataclass(frozen=True, kw_only=True, slots=True)
class Leaf:
    """A key, text or value of the tool data."""

    message: int  # whose call, name or id it is; -1 for the schema of a tool
    value: str | float | bool | None
    what: str  # for errors, e.g. "the tool 'look_up'"
    required: bool = False  # a template that leaves it out loses data
    instead: int = -1  # the number of a leaf that may stand for it: some templates write a call's name in its id alone
    is_key: bool = False


@dataclass(frozen=True, kw_only=True)
class ToolData:
    """A conversation with something else in the place of every leaf, and the leaves."""

    chat: ChatSample
    leaves: tuple[Leaf, ...]
    typed: bool  # a parameter has a type


#: (number of a leaf, the leaf) → what stands in its place
Replace = Callable[[int, Leaf], Any]


def has_tool_data(chat: ChatSample) -> bool:
    """Whether there is any: tools, calls, names or ids."""
    return bool(chat.tools) or any(m.tool_calls or m.name or m.tool_call_id for m in chat.messages)


def replace_tool_data(chat: ChatSample, replace: Replace) -> ToolData:
    """Walk through the tool data; blank texts, the words of the format and the numbers of a schema are no leaves."""
    if not has_tool_data(chat):
        return ToolData(chat=chat, leaves=(), typed=False)
    walk = _Walk(replace)
    messages = tuple(walk.message(number, message) for number, message in enumerate(chat.messages))
    tools = walk.tools(chat.tools)
    changed = dataclasses.replace(chat, tools=tools, messages=messages)
    return ToolData(chat=changed, leaves=tuple(walk.leaves), typed=walk.typed)


def leaves_of(chat: ChatSample) -> tuple[Leaf, ...]:
    """All leaves, in the order of their numbers."""
    if not has_tool_data(chat):
        return ()
    walk = _Walk(lambda _, leaf: leaf.value)
    for number, message in enumerate(chat.messages):
        walk.message(number, message)
    return (*walk.leaves, *_leaves_of_tools(_text_of(chat.tools)))


@lru_cache(maxsize=64)
def _leaves_of_tools(tools: str) -> tuple[Leaf, ...]:
    """Rows come with the same few lists of tools, and these are long."""
    walk = _Walk(lambda _, leaf: leaf.value)
    walk.tools(json.loads(tools))
    return tuple(walk.leaves)


def _text_of(tools: Sequence[Mapping[str, Any]]) -> str:
    return json.dumps([dict(tool) for tool in tools]) if tools else "[]"


def tool_shape(chat: ChatSample) -> tuple[str, str]:
    """The tools, and what is the same in all calls that differ in texts and values only: their keys and the rest."""
    if not has_tool_data(chat):
        return "", ""
    walk = _Walk(_kind)
    messages = [walk.message(number, message) for number, message in enumerate(chat.messages)]
    return _text_of(chat.tools), json.dumps([(m.tool_calls, m.name, m.tool_call_id) for m in messages])


def _kind(number: int, leaf: Leaf) -> Any:
    if leaf.is_key:
        return leaf.value
    return f"\ue000{number}:{leaf.instead}" if isinstance(leaf.value, str) else f"\ue001{number}"


class _Walk:
    """One pass; ``leaves`` are those met so far."""

    def __init__(self, replace: Replace) -> None:
        self.leaves: list[Leaf] = []
        self.typed = False
        self._replace = replace
        self._ids: dict[str, int] = {}
        self._message = -1

    def tools(self, tools: Sequence[Mapping[str, Any]]) -> tuple[dict[str, Any], ...]:
        self._message = -1
        return tuple(self._tool(tool) for tool in tools)

    def _tool(self, tool: Mapping[str, Any]) -> dict[str, Any]:
        function = function_of(tool)
        what = f"the tool {function['name']!r}"
        name = self._text(function["name"], what, required=True)
        special = {
            "name": lambda _: name,
            "description": lambda value: self._loose(value, f"the description of {what}", required=True),
            "parameters": lambda value: self._schema(value, what, is_parameter=False),
        }
        declared = self._fields(function, special, what)
        if "function" not in tool:
            return declared
        return self._fields(tool, {"function": lambda _: declared, "type": self._type}, what)

    def message(self, number: int, message: Message) -> Message:
        if not (message.tool_calls or message.name or message.tool_call_id):
            return message
        self._message = number
        calls = tuple(self._call(call) for call in message.tool_calls)
        name = self._text(message.name, f"the name in message {number}") if message.name else message.name
        given = self._id(message.tool_call_id) if message.tool_call_id else message.tool_call_id
        return dataclasses.replace(message, tool_calls=calls, name=name, tool_call_id=given)

    def _call(self, call: Mapping[str, Any]) -> dict[str, Any]:
        function = function_of(call)
        what = f"the tool call {function['name']!r} of message {self._message}"
        given = call.get("id")
        marked_id = self._id(given) if isinstance(given, str) else given
        instead = self._ids.get(given, -1) if isinstance(given, str) and function["name"] in given else -1
        name = self._text(function["name"], what, required=True, instead=instead)
        inner = {
            "name": lambda _: name,
            "arguments": lambda value: value if value is None else self._argument(value, f"an argument of {what}"),
        }
        outer = {"id": lambda _: marked_id, "type": self._type}
        if "function" not in call:
            return self._fields(call, inner | outer, what)
        marked = self._fields(function, inner, what)
        return self._fields(call, {"function": lambda _: marked, **outer}, what)

    def _argument(self, value: Any, what: str) -> Any:
        if isinstance(value, Mapping):
            keys = self._keys(value, what, required=True)
            return {keys[key]: self._argument(item, what) for key, item in value.items()}
        if isinstance(value, (list, tuple)):
            return [self._argument(item, what) for item in value]
        return self._text(value, what, required=True) if isinstance(value, str) else self._leaf(value, what)

    def _schema(self, schema: Any, what: str, *, is_parameter: bool) -> Any:
        """A JSON schema: names and descriptions of parameters must be written, and the texts to choose from."""
        if not isinstance(schema, Mapping):
            return self._loose(schema, what)
        properties = schema.get("properties")
        listed = properties if isinstance(properties, Mapping) else {}
        names = self._keys(listed, f"a parameter of {what}", required=True)
        chosen = is_parameter and str(schema.get("type")).lower() == "string"
        self.typed |= is_parameter and "type" in schema
        special = {
            "type": self._type,
            "properties": lambda value: self._properties(value, names, what) if names else self._loose(value, what),
            "items": lambda value: self._schema(value, what, is_parameter=False),
            "required": lambda value: self._names(value, names, what),
            "description": lambda value: self._loose(value, f"a description in {what}", required=is_parameter),
            "enum": lambda value: self._loose(value, f"a choice in {what}", required=chosen),
        }
        return self._fields(schema, special, what)

    def _properties(self, properties: Mapping[str, Any], names: Mapping[str, Any], what: str) -> dict[str, Any]:
        return {
            names[name]: self._schema(item, f"the parameter {name!r} of {what}", is_parameter=True)
            for name, item in properties.items()
        }

    def _names(self, listed: Any, names: Mapping[str, Any], what: str) -> Any:
        """Names of parameters keep equal to their keys, for templates compare them."""
        if not isinstance(listed, (list, tuple)):
            return self._loose(listed, what)
        return [names[n] if isinstance(n, str) and n in names else self._loose(n, what) for n in listed]

    def _type(self, value: Any) -> Any:
        if isinstance(value, (list, tuple)):
            return [self._type(item) for item in value]
        return value if isinstance(value, str) and value.lower() in TYPES else self._loose(value, "a type")

    def _fields(
        self, value: Mapping[str, Any], special: Mapping[str, Callable[[Any], Any]], what: str
    ) -> dict[str, Any]:
        keys = self._keys((key for key in value if key not in WORDS), what)
        return {
            keys.get(key, key): special[key](item) if key in special else self._loose(item, what)
            for key, item in value.items()
        }

    def _loose(self, value: Any, what: str, *, required: bool = False) -> Any:
        """Anything else; numbers stay, for templates branch on them."""
        if isinstance(value, Mapping):
            return self._fields(value, {"type": self._type}, what)
        if isinstance(value, (list, tuple)):
            return [self._loose(item, what, required=required) for item in value]
        return self._text(value, what, required=required) if isinstance(value, str) else value

    def _keys(self, keys: Iterable[str], what: str, *, required: bool = False) -> dict[str, Any]:
        """Numbered in the order in which templates sort them, so that marks are sorted alike."""
        return {
            key: self._add(Leaf(message=self._message, value=key, what=what, required=required, is_key=True))
            for key in sorted(keys, key=str.lower)
        }

    def _text(self, text: str, what: str, *, required: bool = False, instead: int = -1) -> Any:
        if not text.strip():
            return text
        return self._add(Leaf(message=self._message, value=text, what=what, required=required, instead=instead))

    def _leaf(self, value: float | bool | None, what: str) -> Any:
        return self._add(Leaf(message=self._message, value=value, what=what, required=True))

    def _id(self, text: str) -> Any:
        """Equal ids are one leaf, for templates compare them."""
        if not text.strip():
            return text
        if text not in self._ids:
            self._ids[text] = len(self.leaves)
            self.leaves.append(Leaf(message=self._message, value=text, what="an id"))
        number = self._ids[text]
        return self._replace(number, self.leaves[number])

    def _add(self, leaf: Leaf) -> Any:
        self.leaves.append(leaf)
        return self._replace(len(self.leaves) - 1, leaf)
