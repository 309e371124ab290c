"""A ChatSample in, the text that the model's chat template renders out."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from jinja2 import TemplateError
from transformers.utils.chat_template_utils import render_jinja_template

from packloom.errors import CookError
from packloom.task_encoders.processors import ProcessorParts
from packloom.types import ChatSample, MediaPart, Message, TextPart

ContentForm = Literal["parts", "string", "string_without_media"]


@dataclass(frozen=True, kw_only=True)
class ChatTemplate:
    """A chat template with the form of content that it renders in full.

    ``content`` is ``"parts"`` (lists everywhere), ``"string"`` (strings everywhere) or ``"string_without_media"``
    (strings, but lists for turns with media).
    """

    parts: ProcessorParts
    content: ContentForm
    variables: Mapping[str, Any]

    def render(self, chat: ChatSample, *, add_generation_prompt: bool = False) -> str:
        """Render the whole conversation once; raises CookError if the template refuses it."""
        messages = [self._message(message) for message in chat.messages]
        try:
            return str(
                self.parts.tokenizer.apply_chat_template(
                    messages,
                    tools=[dict(tool) for tool in chat.tools] or None,
                    chat_template=self.parts.chat_template,
                    tokenize=False,
                    add_generation_prompt=add_generation_prompt,
                    **self.variables,
                )
            )
        except (TemplateError, TypeError, ValueError) as error:  # the last two: data that the template does not expect
            raise CookError(f"the chat template refuses this conversation: {error}", code="template.refused") from error

    def generation_ranges(self, chat: ChatSample) -> list[tuple[int, int]]:
        """The characters of the rendering that the template's ``{% generation %}`` tags enclose."""
        _, ranges = render_jinja_template(
            [[self._message(message) for message in chat.messages]],
            tools=[dict(tool) for tool in chat.tools] or None,
            chat_template=self.parts.chat_template,
            return_assistant_tokens_mask=True,
            **{**self.parts.tokenizer.special_tokens_map, **self.variables},
        )
        return [(start, end) for start, end in ranges[0]]

    @property
    def has_generation_tags(self) -> bool:
        """Whether the template marks what the assistant writes."""
        return re.search(r"\{%-?\s*generation\s*-?%\}", self.parts.chat_template) is not None

    def _message(self, message: Message) -> dict[str, Any]:
        rendered: dict[str, Any] = {"role": message.role, "content": self._content(message)}
        if message.tool_calls:
            rendered["tool_calls"] = [dict(call) for call in message.tool_calls]
        optional = {
            "reasoning_content": message.reasoning,
            "name": message.name,
            "tool_call_id": message.tool_call_id,
        }
        return rendered | {name: value for name, value in optional.items() if value is not None}

    def _content(self, message: Message) -> str | list[dict[str, str]]:
        with_media = any(isinstance(part, MediaPart) for part in message.parts)
        if self.content == "string" or (self.content == "string_without_media" and not with_media):
            return message.text
        return [
            {"type": "text", "text": part.text} if isinstance(part, TextPart) else {"type": part.kind}
            for part in message.parts
        ]


def fold_system(chat: ChatSample) -> ChatSample:
    """The conversation with its system text at the start of the last user turn, two newlines behind it."""
    system, *messages = chat.messages
    users = [number for number, message in enumerate(messages) if message.role == "user"]
    if system.role != "system" or not users:
        return chat
    user = messages[users[-1]]
    messages[users[-1]] = dataclasses.replace(user, parts=(*system.parts, TextPart(text="\n\n"), *user.parts))
    return dataclasses.replace(chat, messages=tuple(messages))


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


def has_media(chat: ChatSample) -> bool:
    """Whether any message places a medium."""
    return any(isinstance(part, MediaPart) for message in chat.messages for part in message.parts)
