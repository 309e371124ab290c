"""A tokenizer in; one that reads control tokens only where the template wrote them, out.

Every control token is given a private name of the same length, made of private-use characters that text does not
hold. The template's own writing is encoded with these names, texts of the data as they are: what they spell is then
ordinary text for the tokenizer, and no character moves.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from tokenizers import Encoding, Tokenizer

from packloom.errors import CapabilityError
from packloom.task_encoders.skeleton import Slot

_BASE, _RANGE, _FILLER = 0xE100, 0x1000, "\uf8ff"


@dataclass(frozen=True)
class NeutralTokenizer:
    """Encodes pieces of template and data; ``tokenizer`` is the family's own, ``control`` its control tokens."""

    tokenizer: Any
    control: frozenset[str] = field(repr=False)

    def encode(self, pieces: Sequence[str | Slot], texts: Sequence[str]) -> tuple[list[int], Encoding]:
        """Ids of the joined ``texts`` and their encoding; only pieces of the template hold control tokens."""
        joined = "".join(
            text if isinstance(piece, Slot) and piece.kind != "image" else self._pattern.sub(self._private, text)
            for piece, text in zip(pieces, texts, strict=True)
        )
        bos = self.tokenizer.bos_token
        add_special = not (bos and "".join(texts).startswith(bos))
        encoded = self._backend.encode(joined, add_special_tokens=add_special)
        return [self._own_ids.get(index, index) for index in encoded.ids], encoded

    @cached_property
    def _names(self) -> dict[str, str]:
        """Control token → private name."""
        names = {}
        for number, token in enumerate(sorted(self.control)):
            if len(token) < 2:
                raise CapabilityError(f"the control token {token!r} is too short for control_tokens='neutralise'")
            name = chr(_BASE + number // _RANGE) + chr(_BASE + number % _RANGE)
            names[token] = name + _FILLER * (len(token) - 2)
        return names

    @cached_property
    def _pattern(self) -> re.Pattern[str]:
        return re.compile("|".join(map(re.escape, sorted(self.control, key=len, reverse=True))))

    def _private(self, found: re.Match[str]) -> str:
        return self._names[found.group()]

    @cached_property
    def _backend(self) -> Tokenizer:
        settings = json.loads(self.tokenizer.backend_tokenizer.to_str())
        settings["truncation"] = settings["padding"] = None  # left there by whoever used the tokenizer last
        for token in settings["added_tokens"]:
            token["content"] = self._names.get(token["content"], token["content"])
        return Tokenizer.from_str(json.dumps(settings))

    @cached_property
    def _own_ids(self) -> dict[int, int]:
        """Ids that the renamed tokens were given → the ids of the tokens they stand for."""
        ids = {token: self._backend.token_to_id(name) for token, name in self._names.items()}
        return {index: self.tokenizer.convert_tokens_to_ids(token) for token, index in ids.items() if index is not None}
