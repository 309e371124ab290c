"""The encoding of a text in; which token stands at a character, and which characters a token covers, out.

To hand over the offsets of all tokens costs more than everything else that a mask needs, so they are asked for one by
one.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence

from tokenizers import Encoding

#: Turns start so few tokens behind the control token that opens them: those are looked at one by one.
_NEAR = 8


class TokenPlaces:
    """The characters of each token in a text of ``num_characters``; the starts of tokens ascend.

    ``marks`` are tokens that are looked up at once, in order; places close behind one are found fastest.
    """

    def __init__(self, encoding: Encoding, num_characters: int, marks: Sequence[int]) -> None:
        self._found = encoding.token_to_chars
        self._num_characters = num_characters
        self._num_tokens = len(encoding)
        known = (index for index in range(self._num_tokens) if self._found(index) is not None)
        self._first = next(known, 0)
        self.marks = marks
        self.mark_characters = [self.characters(mark) for mark in marks]
        self._mark_starts = [start for start, _ in self.mark_characters]

    def characters(self, index: int) -> tuple[int, int]:
        """A token's first character and the one behind its last.

        What the tokenizer adds before the text has (-1, 0); what it adds behind, twice the text's length.
        """
        found: tuple[int, int] | None = self._found(index)
        if found is not None:
            return found
        return (-1, 0) if index < self._first else (self._num_characters, self._num_characters)

    def first_from(self, character: int) -> int:
        """The first token that starts at this character or behind it; the number of tokens if there is none."""
        return self.edge(character)[0]

    def edge(self, character: int) -> tuple[int, int]:
        """The first token from a character, and where the token before it ends: behind the character if it crosses."""
        position = bisect_left(self._mark_starts, character)
        low, end = (self.marks[position - 1] + 1, self.mark_characters[position - 1][1]) if position else (0, 0)
        high = self.marks[position] if position < len(self.marks) else self._num_tokens
        if high - low > _NEAR and self._mark_starts[position : position + 1] == [character]:
            start, stop = self.characters(high - 1)
            if start < character:
                return high, stop
        for index in range(low, min(low + _NEAR, high)):
            start, stop = self.characters(index)
            if start >= character:
                return index, end
            end = stop
        if high - low <= _NEAR:
            return high, end
        index = bisect_left(range(high), character, low + _NEAR, key=lambda token: self.characters(token)[0])
        return index, self.characters(index - 1)[1]
