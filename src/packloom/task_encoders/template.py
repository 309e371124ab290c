"""A ChatSample in, the text that the model's chat template renders out."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Literal, get_args

from jinja2 import TemplateError
from transformers.utils.chat_template_utils import render_jinja_template

from packloom.errors import CookError
from packloom.task_encoders.plain_template import PlainTemplate
from packloom.task_encoders.processors import ProcessorParts
from packloom.types import ChatSample, MediaPart, Message, Role, TextPart

ContentForm = Literal["parts", "string", "string_without_media"]

#: What stands before a text where a template prints a message's content as the list that it is.
PRINTED_LIST = r"""['"]text['"]: ?['"]"""


@dataclass(frozen=True, kw_only=True)
class ChatTemplate:
    """A chat template with the form of content that it renders in full.

    ``content`` is ``"parts"`` (lists everywhere), ``"string"`` (strings everywhere) or ``"string_without_media"``
    (strings, but lists for turns with media, and for turns of several texts where the template takes them).
    """

    parts: ProcessorParts
    content: ContentForm
    variables: Mapping[str, Any]
    facts: dict[str, bool] = field(default_factory=dict, compare=False, repr=False)  # found by rendering probes

    @cached_property
    def _plain(self) -> PlainTemplate:
        parts = self.parts
        return PlainTemplate(tokenizer=parts.tokenizer, chat_template=parts.chat_template, variables=self.variables)

    @cached_property
    def lists(self) -> frozenset[Role]:
        """The roles whose content may be a list of several texts: each is written, and no list is printed."""
        return frozenset(role for role in get_args(Role) if self._takes_list(role))

    def render(self, chat: ChatSample, *, add_generation_prompt: bool = False) -> str:
        """Render the whole conversation once; raises CookError if the template refuses it."""
        messages = [self._message(message) for message in chat.messages]
        tools = [dict(tool) for tool in chat.tools] or None
        return self._apply(messages, tools=tools, add_generation_prompt=add_generation_prompt)

    def _apply(
        self,
        messages: list[dict[str, Any]],
        *,
        tools: list[dict[str, Any]] | None = None,
        add_generation_prompt: bool = False,
    ) -> str:
        try:
            return self._plain.render(messages, tools=tools, add_generation_prompt=add_generation_prompt)
        except (TemplateError, TypeError, ValueError) as error:  # the last two: data that the template does not expect
            raise CookError(f"the chat template refuses this conversation: {error}", code="template.refused") from error

    def generation_ranges(self, chat: ChatSample) -> tuple[str, list[tuple[int, int]]]:
        """The rendering, and its characters that the template's ``{% generation %}`` tags enclose."""
        rendered, ranges = render_jinja_template(
            [[self._message(message) for message in chat.messages]],
            tools=[dict(tool) for tool in chat.tools] or None,
            chat_template=self.parts.chat_template,
            return_assistant_tokens_mask=True,
            **self._plain.shown,
        )
        return str(rendered[0]), [(start, end) for start, end in ranges[0]]

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
        return message.text if self._as_string(message) else _listed(message)

    def _as_string(self, message: Message) -> bool:
        if self.content != "string_without_media":
            return self.content == "string"
        texts = [part for part in message.parts if isinstance(part, TextPart)]
        if len(texts) < len(message.parts):
            return False
        several = len(texts) > 1 and not any(part.read for part in texts)
        return not several or message.role not in self.lists

    def _takes_list(self, role: Role) -> bool:
        texts = ("first probe text", "second probe text")
        probe = Message(role=role, parts=tuple(TextPart(text=text) for text in texts))
        before: dict[Role, tuple[Role, ...]] = {"assistant": ("user",), "tool": ("user", "assistant")}
        messages = [{"role": other, "content": "probe"} for other in before.get(role, ())]
        messages.append({"role": role, "content": _listed(probe)})  # type: ignore[dict-item]
        if role == "system":
            messages.append({"role": "user", "content": "probe"})
        try:
            rendered = self._apply(messages)
        except CookError:
            return False
        return all(text in rendered for text in texts) and not re.search(PRINTED_LIST + texts[0], rendered)


def _listed(message: Message) -> list[dict[str, str]]:
    """The parts; of a message that says nothing one empty text, for templates that look at the first part."""
    if not message.parts and not message.tool_calls:
        return [{"type": "text", "text": ""}]
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
