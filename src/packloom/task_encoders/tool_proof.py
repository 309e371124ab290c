"""A conversation with tools and its template in; an error out unless the template writes every call in full."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from typing import Any

from packloom.errors import MaskError
from packloom.task_encoders.chat_checks import function_of
from packloom.task_encoders.template import ChatTemplate
from packloom.types import ChatSample, Message


def prove_tools_are_written(template: ChatTemplate, chat: ChatSample) -> None:
    """Render once with marks for every name and every text in the arguments: each must be in the rendering.

    A template that drops calls, their arguments or the tools themselves is refused (MaskError): the row would train
    on less than it holds. Names are looked for in a call's id too, for some templates write only that.
    """
    if not chat.tools and not any(message.tool_calls for message in chat.messages):
        return
    marks = _Marks()
    tools = tuple(marks.tool(tool) for tool in chat.tools)
    messages = tuple(marks.message(message, number) for number, message in enumerate(chat.messages))
    rendered = template.render(dataclasses.replace(chat, tools=tools, messages=messages))
    for mark, what in marks.meanings.items():
        if mark not in rendered and json.dumps(mark)[1:-1] not in rendered:
            raise MaskError(
                f"the chat template drops {what}",
                code="template.tool_call_lost",
                hint="use a template that renders tools and tool_calls, or write them into the text",
            )


class _Marks:
    """Hands out marks and remembers what each stands for."""

    def __init__(self) -> None:
        self.meanings: dict[str, str] = {}

    def tool(self, tool: Mapping[str, Any]) -> dict[str, Any]:
        name = function_of(tool)["name"]
        return _with_name(tool, self._mark(f"the tool {name!r}"))

    def message(self, message: Message, number: int) -> Message:
        calls = tuple(self._call(call, number) for call in message.tool_calls)
        return dataclasses.replace(message, tool_calls=calls)

    def _call(self, call: Mapping[str, Any], number: int) -> dict[str, Any]:
        function = function_of(call)
        name = function["name"]
        mark = self._mark(f"the tool call {name!r} of message {number}")
        marked = _with_name(call, mark)
        if isinstance(marked.get("id"), str):
            marked["id"] = marked["id"].replace(name, mark)
        inner = marked.get("function", marked)
        if isinstance(inner.get("arguments"), (Mapping, list)):
            inner["arguments"] = self._leaves(inner["arguments"], name)
        return marked

    def _leaves(self, value: Any, name: str) -> Any:
        if isinstance(value, Mapping):
            return {key: self._leaves(item, name) for key, item in value.items()}
        if isinstance(value, list):
            return [self._leaves(item, name) for item in value]
        return self._mark(f"an argument of the tool call {name!r}") if isinstance(value, str) and value else value

    def _mark(self, meaning: str) -> str:
        mark = f"\ue000{len(self.meanings)}\ue001"
        self.meanings[mark] = meaning
        return mark


def _with_name(item: Mapping[str, Any], name: str) -> dict[str, Any]:
    if "function" in item:
        return {**item, "function": {**item["function"], "name": name}}
    return {**item, "name": name}
