"""TokenPlaces: characters of tokens one by one, and the token at a character, as the whole table of offsets says."""

from __future__ import annotations

import bisect
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Encoding, Tokenizer, models, pre_tokenizers, processors

from packloom.task_encoders.token_places import TokenPlaces

MARKS = [[], [0], [2], [1, 3], [0, 1, 2, 3]]


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    """A token per word, one for each white space between; [C] and [D] before the text, [S] behind it."""
    made = Tokenizer(models.WordLevel({"[U]": 0, "[C]": 1, "[D]": 2, "[S]": 3}, unk_token="[U]"))
    made.pre_tokenizer = pre_tokenizers.Split(" ", "isolated")
    made.post_processor = processors.TemplateProcessing(
        single="[C] [D] $A [S]", special_tokens=[("[C]", 1), ("[D]", 2), ("[S]", 3)]
    )
    return made


def places(encoding: Encoding, length: int, marks: Sequence[int]) -> TokenPlaces:
    return TokenPlaces(encoding, length, marks)


@pytest.mark.parametrize("marks", MARKS)
def test_written_out(tokenizer: Tokenizer, marks: list[int]) -> None:
    found = places(tokenizer.encode("ab cd", add_special_tokens=False), 5, marks if 3 not in marks else [0, 2])
    assert [found.characters(index) for index in range(3)] == [(0, 2), (2, 3), (3, 5)]
    assert [found.first_from(character) for character in range(6)] == [0, 1, 1, 2, 3, 3]


@pytest.mark.parametrize("marks", MARKS)
def test_tokens_that_the_tokenizer_adds_stand_outside(tokenizer: Tokenizer, marks: list[int]) -> None:
    found = places(tokenizer.encode("ab c"), 4, marks)
    assert [found.characters(index) for index in range(6)] == [(-1, 0), (-1, 0), (0, 2), (2, 3), (3, 4), (4, 4)]
    assert [found.first_from(character) for character in range(5)] == [2, 3, 3, 4, 5]
    assert found.mark_characters == [found.characters(mark) for mark in marks]


@pytest.mark.parametrize("kind", [processors.BertProcessing, processors.RobertaProcessing])
def test_other_post_processors_tell_their_tokens_too(tokenizer: Tokenizer, kind: type) -> None:
    twin = Tokenizer.from_str(tokenizer.to_str())
    twin.post_processor = kind(("[S]", 3), ("[C]", 1))
    found = places(twin.encode("ab c"), 4, [])
    assert [found.characters(index) for index in range(5)] == [(-1, 0), (0, 2), (2, 3), (3, 4), (4, 4)]


def test_a_character_of_several_tokens_is_found_at_the_first() -> None:
    made = Tokenizer(models.BPE(vocab={letter: n for n, letter in enumerate("xðŁĻĤ")}, merges=[]))
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    found = places(made.encode("x🙂x"), 3, [0])
    assert [found.characters(index) for index in range(6)] == [(0, 1), (1, 2), (1, 2), (1, 2), (1, 2), (2, 3)]
    assert [found.first_from(character) for character in range(4)] == [0, 1, 5, 6]


@given(lengths=st.lists(st.integers(1, 5), min_size=1, max_size=40), data=st.data())
def test_any_character_with_any_marks(tokenizer: Tokenizer, lengths: list[int], data: st.DataObject) -> None:
    text = " ".join("a" * length for length in lengths)
    encoding = tokenizer.encode(text, add_special_tokens=False)
    marks = data.draw(st.sets(st.integers(0, len(encoding) - 1)))
    found = places(encoding, len(text), sorted(marks))
    starts = [start for start, _ in encoding.offsets]
    for character in range(len(text) + 1):
        index = bisect.bisect_left(starts, character)
        assert found.edge(character) == (index, encoding.offsets[index - 1][1] if index else 0)
        assert found.first_from(character) == index
