"""Turn spans on a template's own writing, and the proofs that refuse a wrong one."""

from __future__ import annotations

import dataclasses

import pytest
from hypothesis import given
from hypothesis import strategies as st

from packloom.errors import MaskError
from packloom.task_encoders.family import Boundary
from packloom.task_encoders.skeleton import Skeleton, Slot, fill
from packloom.task_encoders.turns import find_turns
from packloom.types import ChatSample, Message, TextPart

CHATML = Boundary(start="<a>", ends=("<e>",))


def chat(*roles_and_texts: tuple[str, str]) -> ChatSample:
    messages = tuple(Message(role=role, parts=(TextPart(text=text),)) for role, text in roles_and_texts)
    return ChatSample(key="k", messages=messages)


def slot(message: int) -> Slot:
    return Slot(kind="text", message=message, part=0)


def found(skeleton: Skeleton, sample: ChatSample, *boundaries: Boundary, prefixes: tuple[str, ...] = ()) -> list:
    spans = find_turns(skeleton, sample, boundaries or (CHATML,), prompt_prefixes=prefixes)
    return [(s.message, (s.start.piece, s.start.offset), (s.end.piece, s.end.offset), s.terminator) for s in spans]


TWO_TURNS = chat(("user", "u"), ("assistant", "a"), ("user", "v"), ("assistant", "b"))


def test_each_turn_from_its_header_to_its_terminator():
    pieces = ("<u>", slot(0), "<e><a>", slot(1), "<e><u>", slot(2), "<e><a>", slot(3), "<e>")
    assert found(Skeleton(pieces=pieces), TWO_TURNS) == [(1, (2, 6), (4, 0), "<e>"), (3, (6, 6), (8, 0), "<e>")]


def test_the_next_role_mark_can_be_the_terminator_and_a_suffix_the_last_one():
    marks = Boundary(start="<a>", ends=("<u>", "<end>"))
    pieces = ("<u>", slot(0), "<a>", slot(1), "<u>", slot(2), "<a>", slot(3))
    assert found(Skeleton(pieces=pieces, suffix="<end>"), TWO_TURNS, marks) == [
        (1, (2, 3), (4, 0), "<u>"),
        (3, (6, 3), (8, 0), "<end>"),
    ]


def test_a_shared_delimiter_opens_a_turn_only_where_an_assistant_speaks():
    shared = Boundary(start="[/I]", ends=("</s>",))
    asked = chat(("user", "u"), ("user", "v"), ("assistant", "a"), ("user", "w"))
    pieces = ("[I]", slot(0), "[/I][I]", slot(1), "[/I]", slot(2), "</s>[I]", slot(3), "[/I]")
    assert found(Skeleton(pieces=pieces), asked, shared) == [(2, (4, 4), (6, 0), "</s>")]


def test_an_empty_turn_is_its_terminator_alone():
    empty = chat(("user", "u"), ("assistant", ""))
    assert found(Skeleton(pieces=("<u>", slot(0), "<e><a><e>")), empty) == [(1, (2, 6), (2, 6), "<e>")]


def test_texts_that_inference_supplies_belong_to_the_prompt():
    pieces = ("<u>", slot(0), "<e><a><t></t>", slot(1), "<e>")
    one = chat(("user", "u"), ("assistant", "a"))
    assert found(Skeleton(pieces=pieces), one, prefixes=("<t>", "<t></t>")) == [(1, (2, 13), (4, 0), "<e>")]


def test_any_number_of_pairs():
    calls = Boundary(start="<c>", ends=("</c>",))
    pieces = ("<a>", slot(0), "<e><c>", slot(1), "</c>")
    both = chat(("assistant", "a"), ("assistant", "b"))
    assert [span[0] for span in found(Skeleton(pieces=pieces), both, CHATML, calls)] == [0, 1]


@pytest.mark.parametrize(
    ("pieces", "message"),
    [
        (("<u>", slot(0), "<e><a>", slot(1)), "1 assistant turns, but the template writes 0"),
        (("<u>", slot(0), "<a>x<e><a>", slot(1), "<e>"), "1 assistant turns, but the template writes 2"),
        (("<a>", slot(0), slot(1), "<e>"), "span of assistant message 1 holds a part of message 0"),
        (("<u>", slot(0), slot(1), "<a><e>"), "part of assistant message 1 stands outside its span"),
    ],
)
def test_wrong_or_missing_spans_are_refused(pieces, message):
    with pytest.raises(MaskError, match=message):
        found(Skeleton(pieces=pieces), chat(("user", "u"), ("assistant", "a")))


def test_a_conversation_without_an_assistant_is_refused():
    with pytest.raises(MaskError, match="no assistant turn"):
        found(Skeleton(pieces=("<u>", slot(0), "<e>")), chat(("user", "u")))


@given(st.lists(st.sampled_from(["user", "assistant", "system"]), min_size=1, max_size=8), st.data())
def test_search_finds_exactly_the_assistant_turns(roles, data):
    texts = data.draw(
        st.lists(st.sampled_from(["x", "<a>", "<e><a>y<e>", ""]), min_size=len(roles), max_size=len(roles))
    )
    sample = chat(*zip(roles, texts, strict=True))
    pieces: list[str | Slot] = [""]
    expected = []
    for number, (role, text) in enumerate(zip(roles, texts, strict=True)):
        pieces[-1] += "<a>" if role == "assistant" else f"<{role}>"
        opened = (len(pieces) - 1, len(pieces[-1]))
        if text:
            pieces += [slot(number), ""]
        if role == "assistant":
            expected.append((number, opened, (len(pieces) - 1, len(pieces[-1])), "<e>"))
        pieces[-1] += "<e>"
    if not expected:
        return
    assert found(Skeleton(pieces=tuple(pieces)), sample) == expected


def test_a_row_must_be_its_skeleton_with_its_own_texts():
    skeleton = Skeleton(pieces=("<u>", slot(0), "<a>", slot(1), "<e>"))
    sample = chat(("user", "<u>Hi "), ("assistant", " Yes"))
    assert fill(skeleton, sample, "<u><u>Hi <a> Yes<e>", None) == ["<u>", "<u>Hi ", "<a>", " Yes", "<e>"]
    assert fill(skeleton, sample, "<u><u>Hi<a>Yes<e>", None)[1::2] == ["<u>Hi", "Yes"]  # trimmed is allowed
    for other in ("<u><u>Hi <a> Yes<e>!", "<u><u>Hi <a> YES<e>", "<u>Hi <a> Yes<e>", "<u><u>Hi <b> Yes<e>"):
        with pytest.raises(MaskError, match="rewrites"):
            fill(skeleton, sample, other, None)


def test_two_equal_texts_keep_their_own_places():
    skeleton = Skeleton(pieces=("u:", slot(0), " u:", slot(1), " a:", slot(2)))
    sample = dataclasses.replace(chat(("user", "u:"), ("user", "a:"), ("assistant", "a:")))
    assert fill(skeleton, sample, "u:u: u:a: a:a:", None) == ["u:", "u:", " u:", "a:", " a:", "a:"]
