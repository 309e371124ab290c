"""Pieces of a rendering in; the ids and the encoding that a call of their tokenizer gives, without the call, out.

A call goes through a layer of transformers that decides what the Rust tokenizer is asked; for one text without options
that is always the same question. Where the layer is transformers' own and probes show no difference, it is left out.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from tokenizers import Encoding
from transformers import PreTrainedTokenizerBase, PreTrainedTokenizerFast

from packloom.task_encoders.skeleton import Slot

_PROBES = ("", "x", " x ", "\n\nx\n", "Ünï 你好 🙂 e\u0301 ½\u200b", "x" * 3000, "Two  words.\tThree\r\n")


@dataclass(frozen=True)
class PlainTokenizer:
    """Encodes the joined texts as transformers does; ``tokenizer`` is the family's own."""

    tokenizer: Any

    def encode(self, pieces: Sequence[str | Slot], texts: Sequence[str]) -> tuple[Sequence[int], Encoding]:
        """Ids and their encoding; the tokenizer adds its first token unless the template has written it."""
        text = "".join(texts)
        bos = self.tokenizer.bos_token
        return self._encode(text, add_special_tokens=not (bos and text.startswith(bos)))

    def _encode(self, text: str, *, add_special_tokens: bool) -> tuple[Sequence[int], Encoding]:
        if self._is_direct and self._has_no_options():
            encoding = self.tokenizer.backend_tokenizer.encode_batch([text], add_special_tokens=add_special_tokens)[0]
            return encoding.ids, encoding
        return self._call(text, add_special_tokens=add_special_tokens)

    def _call(self, text: str, *, add_special_tokens: bool) -> tuple[Sequence[int], Encoding]:
        encoded = self.tokenizer(
            text,
            add_special_tokens=add_special_tokens,
            return_attention_mask=False,
            return_token_type_ids=False,
            verbose=False,
        )
        return encoded["input_ids"], encoded.encodings[0]

    def _has_no_options(self) -> bool:
        """Whether the Rust tokenizer is as a call would set it: others who share it may have left options there."""
        backend = self.tokenizer.backend_tokenizer
        special = backend.encode_special_tokens == self.tokenizer.split_special_tokens
        return special and backend.truncation is None and backend.padding is None

    @cached_property
    def _is_direct(self) -> bool:
        kind = type(self.tokenizer)
        own = PreTrainedTokenizerBase.__call__, vars(PreTrainedTokenizerFast).get("_encode_plus")
        if (kind.__call__, getattr(kind, "_encode_plus", None)) != own:
            return False
        backend = self.tokenizer.backend_tokenizer
        marks = " ".join(token.content for token in self.tokenizer.added_tokens_decoder.values())
        for text in (*_PROBES, marks):
            for add in (True, False):
                ids, encoding = self._call(text, add_special_tokens=add)
                direct = backend.encode_batch([text], add_special_tokens=add)[0]
                if direct.ids != ids or direct.offsets != encoding.offsets:
                    return False
        return True
