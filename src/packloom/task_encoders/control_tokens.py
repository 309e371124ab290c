"""Texts from the data in, a refusal out for each that spells a token which only the template may write."""

from __future__ import annotations

import re
from dataclasses import dataclass, field

import numpy as np

from packloom.errors import MaskError
from packloom.task_encoders.family import Family
from packloom.task_encoders.processors import ProcessorParts
from packloom.task_encoders.template import contiguous_texts
from packloom.task_encoders.tool_data import leaves_of
from packloom.types import ChatSample


@dataclass(frozen=True, kw_only=True)
class ControlTokens:
    """The tokens that only the template may write: special tokens, turn boundaries and media tokens.

    Special tokens that a family declares as payload (grounding marks) may stand in the data.
    """

    ids: np.ndarray = field(repr=False)  # [K] int64, sorted
    texts: frozenset[str] = field(repr=False)
    pattern: re.Pattern[str] = field(repr=False)

    @classmethod
    def of(cls, parts: ProcessorParts, family: Family) -> ControlTokens:
        """Collect the control tokens of a tokenizer and a family."""
        added = {token.content: (index, token) for index, token in parts.tokenizer.added_tokens_decoder.items()}
        declared = {*family.media_tokens, *(end for boundary in family.boundaries for end in boundary.ends)}
        declared |= {text for text in added if _is_mark(text) and any(text in b.start for b in family.boundaries)}
        special = {text for text, (_, token) in added.items() if token.special} - family.payload_tokens
        texts = frozenset(text for text in (special | declared) if text and text in added)
        return cls(
            ids=np.array(sorted(added[text][0] for text in texts), dtype=np.int64),
            texts=texts,
            pattern=re.compile("|".join(map(re.escape, sorted(texts, key=len, reverse=True))) or r"(?!)"),
        )

    def in_texts(self, chat: ChatSample) -> str | None:
        """The first control token that a message's text or reasoning, or a leaf of the tool data, spells, if any."""
        for message in chat.messages:
            for text in (*contiguous_texts(message), message.reasoning or ""):
                if found := self.pattern.search(text):
                    return found.group()
        for leaf in leaves_of(chat):
            if isinstance(leaf.value, str) and (found := self.pattern.search(leaf.value)):
                return found.group()
        return None

    def refuse_in(self, chat: ChatSample) -> None:
        """Raise MaskError if the sample's texts or tool data spell a control token."""
        token = self.in_texts(chat)
        if token is not None:
            raise MaskError(
                f"a text of the sample spells the control token {token!r}, which only the chat template may write",
                code="mask.control_token_in_text",
                hint="remove it, or set control_tokens='neutralise' to have it read as ordinary text",
            )


def _is_mark(text: str) -> bool:
    """Whether an added token looks like a mark; some tokenizers add white space or plain words."""
    return bool(text.strip()) and not text.strip().isalnum()
