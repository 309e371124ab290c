"""A conversation with what must be trained on enters, the ChatSample that an encoder takes leaves."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from packloom.task_encoders.cookers import cook
from packloom.types import ChatSample

#: Where a case is truncated: in the last answer, in the last question, or in the last image.
Cut = Literal["answer", "question", "image"]


@dataclass(frozen=True, kw_only=True)
class MaskCase:
    """One conversation with the texts that must be trained on.

    ``messages`` are OpenAI-style; their image parts (``{"type": "image"}``) take ``images``, compressed files, in
    order.

    ``supervised`` has one entry per trained span, in order: the text of the answer, or the pieces of it (reasoning,
    answer, a tool's name and arguments) where the template writes something of its own between them. Reasoning of
    an earlier turn may be missing, for templates drop it. A text may come out trimmed. None: the row must be refused.
    ``may_refuse`` accepts a refusal beside the spans.
    """

    name: str
    messages: Sequence[Mapping[str, Any]]
    supervised: Sequence[str | Sequence[str]] | None
    images: Sequence[bytes] = field(default=(), repr=False)
    tools: Sequence[Mapping[str, Any]] = ()
    may_refuse: bool = False
    cut: Cut | None = None
    twin: MaskCase | None = field(default=None, repr=False)  # must have exactly the same control tokens

    @property
    def chat(self) -> ChatSample:
        """The conversation as an encoder takes it; raises CookError for messages that are none."""
        row = {"messages": [dict(message) for message in self.messages], "tools": [dict(tool) for tool in self.tools]}
        images = {f"{number}.png": data for number, data in enumerate(self.images)}
        return cook({"__key__": self.name, "json": row, **images})

    @property
    def reasoning(self) -> list[str]:
        """The reasoning of every assistant turn."""
        return [str(turn["reasoning_content"]) for turn in self.messages if turn.get("reasoning_content")]

    @property
    def early_reasoning(self) -> list[str]:
        """The reasoning of every assistant turn but the last."""
        turns = [message for message in self.messages if message.get("role") == "assistant"]
        return [str(turn["reasoning_content"]) for turn in turns[:-1] if turn.get("reasoning_content")]

    @property
    def last_question(self) -> str:
        """The text of the last user turn, trimmed."""
        return [_text(message) for message in self.messages if message.get("role") == "user"][-1].strip()

    @property
    def tool_names(self) -> list[str]:
        """The names of the tools that the row declares."""
        return [str(tool.get("function", tool).get("name", "")) for tool in self.tools]

    def texts_beside(self, own: Sequence[str]) -> list[str]:
        """The texts of the messages that hold none of ``own``."""
        texts = [_text(message).strip() for message in self.messages]
        return [text for text in texts if text and not any(piece in text or text in piece for piece in own)]


def _text(message: Mapping[str, Any]) -> str:
    content = message.get("content") or ""
    if isinstance(content, str):
        return content
    return "".join(str(part.get("text") or "") for part in content)
