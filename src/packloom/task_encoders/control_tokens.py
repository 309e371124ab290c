"""Texts from the data in, a refusal out for each that spells a token which only the template may write."""

from __future__ import annotations

import re
from dataclasses import dataclass, field

import numpy as np

from packloom.errors import MaskError
from packloom.task_encoders.family import Family
from packloom.task_encoders.processors import ProcessorParts
from packloom.task_encoders.template import all_payloads
from packloom.types import ChatSample


@dataclass(frozen=True, kw_only=True)
class ControlTokens:
    """The tokens that only the template may write: special tokens, turn boundaries and media tokens.

    Special tokens that a family declares as payload (grounding marks) may stand in the data.
    """

    ids: np.ndarray = field(repr=False)  # [K] int64, sorted
    pattern: re.Pattern[str] = field(repr=False)

    @classmethod
    def of(cls, parts: ProcessorParts, family: Family) -> ControlTokens:
        """Collect the control tokens of a tokenizer and a family."""
        added = {token.content: (index, token) for index, token in parts.tokenizer.added_tokens_decoder.items()}
        declared = {*family.media_tokens, *(end for boundary in family.boundaries for end in boundary.ends)}
        declared |= {text for text in added if any(text in boundary.start for boundary in family.boundaries)}
        texts = {text for text, (_, token) in added.items() if token.special} - family.payload_tokens | declared
        known = sorted(text for text in texts if text)
        return cls(
            ids=np.array(sorted(added[text][0] for text in known if text in added), dtype=np.int64),
            pattern=re.compile("|".join(map(re.escape, sorted(known, key=len, reverse=True))) or r"(?!)"),
        )

    def refuse_in(self, chat: ChatSample) -> None:
        """Raise MaskError if any text of the sample spells a control token."""
        for payload in all_payloads(chat):
            found = self.pattern.search(payload)
            if found:
                raise MaskError(
                    f"a text of the sample spells the control token {found.group()!r}, which only the chat template"
                    " may write",
                    code="mask.control_token_in_text",
                    hint="remove it or write it differently",
                )
