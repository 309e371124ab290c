"""A ChatSample in, the text that the model's chat template renders out, with the place of every payload in it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from jinja2 import TemplateError

from packloom.errors import CookError, MaskError
from packloom.task_encoders.processors import ProcessorParts
from packloom.types import ChatSample, MediaPart, Message, TextPart


@dataclass(frozen=True, kw_only=True)
class ChatTemplate:
    """A chat template with the form of content that it renders in full."""

    parts: ProcessorParts
    content: Literal["parts", "string"]
    variables: Mapping[str, Any]

    def render(self, chat: ChatSample) -> str:
        """Render the whole conversation once; raises CookError if the template refuses it."""
        messages = [self._message(message) for message in chat.messages]
        try:
            return str(
                self.parts.tokenizer.apply_chat_template(
                    messages,
                    tools=[dict(tool) for tool in chat.tools] or None,
                    chat_template=self.parts.chat_template,
                    tokenize=False,
                    **self.variables,
                )
            )
        except (
            TemplateError,
            TypeError,
            ValueError,
        ) as error:  # templates raise the last two on data they do not expect
            raise CookError(f"the chat template refuses this conversation: {error}", code="template.refused") from error

    def _message(self, message: Message) -> dict[str, Any]:
        rendered: dict[str, Any] = {"role": message.role, "content": self._content(message)}
        if message.tool_calls:
            rendered["tool_calls"] = [dict(call) for call in message.tool_calls]
        if message.reasoning is not None:
            rendered["reasoning_content"] = message.reasoning
        return rendered

    def _content(self, message: Message) -> str | list[dict[str, str]]:
        if self.content == "string":
            return message.text
        return [
            {"type": "text", "text": part.text} if isinstance(part, TextPart) else {"type": part.kind}
            for part in message.parts
        ]


def contiguous_texts(message: Message) -> list[str]:
    """The message's text with neighbouring text parts joined: a control token may be spelled across two of them."""
    texts: list[str] = []
    previous_was_text = False
    for part in message.parts:
        if isinstance(part, TextPart):
            if previous_was_text:
                texts[-1] += part.text
            else:
                texts.append(part.text)
        previous_was_text = isinstance(part, TextPart)
    return texts


def all_payloads(chat: ChatSample) -> list[str]:
    """Every piece of text that comes from the data: message text, reasoning, tool calls and tool schemas."""
    payloads = [json.dumps(tool, ensure_ascii=False) for tool in chat.tools]
    for message in chat.messages:
        payloads += contiguous_texts(message)
        payloads += [json.dumps(call, ensure_ascii=False) for call in message.tool_calls]
        if message.reasoning is not None:
            payloads.append(message.reasoning)
    return payloads


def find_payloads(chat: ChatSample, rendered: str) -> list[tuple[int, int]]:
    """Where the text parts stand in the rendering, as character ranges in order.

    A template that drops, reorders or rewrites a text is refused (MaskError): what it leaves out would be lost without
    a sign. Trimmed white space is allowed.
    """
    ranges: list[tuple[int, int]] = []
    position = 0
    for number, message in enumerate(chat.messages):
        for part in message.parts:
            text = part.text.strip() if isinstance(part, TextPart) else ""
            if not text:
                continue
            start = rendered.find(text, position)
            if start < 0:
                raise MaskError(
                    f"the chat template drops or rewrites the text of message {number} ({message.role}):"
                    f" {_shorten(text)!r} is not in the rendering at its place",
                    code="template.text_lost",
                )
            position = start + len(text)
            ranges.append((start, position))
        position = _find_tool_calls(message, number, rendered, position)
    return ranges


def _find_tool_calls(message: Message, number: int, rendered: str, position: int) -> int:
    for call in message.tool_calls:
        name = str(call.get("function", call).get("name", ""))
        start = rendered.find(name, position) if name else -1
        if start < 0:
            raise MaskError(
                f"the chat template drops the tool call {name!r} of message {number}",
                code="template.tool_call_lost",
                hint="use a template that renders tool_calls, or write the call into the text",
            )
        position = start + len(name)
    return position


def count_media(chat: ChatSample) -> int:
    """The media parts of all messages."""
    return sum(isinstance(part, MediaPart) for message in chat.messages for part in message.parts)


def _shorten(text: str, limit: int = 60) -> str:
    return text if len(text) <= limit else f"{text[: limit - 1]}…"
