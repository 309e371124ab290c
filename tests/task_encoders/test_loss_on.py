"""Which turns are trained on: all, the last, or every text token; marks on messages; terminators left out."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import pytest

from packloom import TaskEncoder
from packloom.errors import MaskError
from packloom.types import EncodedSample, Row

#: Family → the terminator of a turn in the middle, and of the last one.
ENDS = {
    "qwen2_5_vl": ("<|im_end|>", "<|im_end|>"),
    "qwen3_5": ("<|im_end|>", "<|im_end|>"),
    "gemma3": ("<end_of_turn>", "<end_of_turn>"),
    "glm46v": ("<|user|>", "<|endoftext|>"),
    "llava": ("</s>", "</s>"),
    "smolvlm": ("<end_of_utterance>", "<end_of_utterance>"),
}


def encoded(
    encoder: TaskEncoder, *messages: tuple[str, Any], marks: dict[int, Any] | None = None, **parts: bytes
) -> EncodedSample:
    turns = [{"role": role, "content": content} for role, content in messages]
    for number, loss in (marks or {}).items():
        turns[number]["loss"] = loss
    return encoder.encode_sample({"__key__": "k", "json": {"messages": turns}, **parts})


def spans(encoder: TaskEncoder, sample: EncodedSample) -> list[str]:
    tokens = zip(sample.input_ids.tolist(), sample.loss_mask.tolist(), strict=True)
    groups = itertools.groupby(tokens, key=lambda pair: pair[1])
    return [encoder.parts.tokenizer.decode([i for i, _ in group]).strip() for yes, group in groups if yes]


TALK = [("user", "Q1"), ("assistant", "One"), ("user", "Q2"), ("assistant", "Two")]


@pytest.mark.parametrize("family", ENDS)
def test_the_last_turn_alone(family: str, encoder_of: Callable[..., TaskEncoder]) -> None:
    encoder = encoder_of(family, loss_on="last_turn")
    assert spans(encoder, encoded(encoder, *TALK)) == [f"Two{ENDS[family][1]}"]
    trailing = encoded(encoder, *TALK, ("user", "Q3"))
    assert spans(encoder, trailing) == [f"Two{ENDS[family][0]}"]


def test_a_last_turn_without_loss_leaves_nothing(encoder_of: Callable[..., TaskEncoder]) -> None:
    encoder = encoder_of("qwen3_vl", loss_on="last_turn")
    with pytest.raises(MaskError, match="nothing to train on"):
        encoded(encoder, *TALK, marks={3: False})
    assert spans(encoder, encoded(encoder, *TALK, marks={1: False})) == ["Two<|im_end|>"]


@pytest.mark.parametrize("family", ENDS)
def test_terminators_left_out(family: str, encoder_of: Callable[..., TaskEncoder]) -> None:
    encoder = encoder_of(family, train_terminator=False)
    assert spans(encoder, encoded(encoder, *TALK)) == ["One", "Two"]
    both = encoder_of(family, train_terminator=False, loss_on="last_turn")
    assert spans(both, encoded(both, *TALK)) == ["Two"]
    assert encoded(encoder, *TALK).input_ids.equal(encoded(encoder_of(family), *TALK).input_ids)


def test_an_empty_answer_is_nothing_without_its_terminator(encoder_of: Callable[..., TaskEncoder]) -> None:
    encoder = encoder_of("qwen3_vl", train_terminator=False)
    assert spans(encoder, encoded(encoder, *TALK[:3], ("assistant", ""))) == ["One"]
    with pytest.raises(MaskError, match="nothing to train on"):
        encoded(encoder, ("user", "Q"), ("assistant", ""))


@pytest.mark.parametrize("family", ENDS)
def test_marks_on_messages(family: str, encoder_of: Callable[..., TaskEncoder]) -> None:
    encoder = encoder_of(family)
    middle, last = ENDS[family]
    assert spans(encoder, encoded(encoder, *TALK, marks={1: False})) == [f"Two{last}"]
    assert spans(encoder, encoded(encoder, *TALK, marks={3: False})) == [f"One{middle}"]
    assert spans(encoder, encoded(encoder, *TALK, marks={1: True, 3: None})) == [f"One{middle}", f"Two{last}"]
    with pytest.raises(MaskError, match="nothing to train on"):
        encoded(encoder, *TALK, marks={1: False, 3: False})


@pytest.mark.parametrize("family", ENDS)
def test_all_text(family: str, encoder_of: Callable[..., TaskEncoder], picture: Callable[[int, int], bytes]) -> None:
    """Every token but those of media; the row need not have an assistant."""
    encoder = encoder_of(family, loss_on="all_text")
    content = [{"type": "image"}, {"type": "text", "text": "A cat on a mat."}]
    sample = encoded(encoder, ("user", content), **{"0.png": picture(48, 64)})
    media = set(encoder.media_ids.tolist())
    assert encoder.media_id in media
    untrained = {
        index for index, on in zip(sample.input_ids.tolist(), sample.loss_mask.tolist(), strict=True) if not on
    }
    newlines = {encoder.parts.tokenizer.convert_tokens_to_ids(text) for text in ("\n", "\n\n", "Ċ", "ĊĊ")}
    assert media & set(sample.input_ids.tolist()) <= untrained <= media | newlines  # an image may hold line breaks
    assert "A cat on a mat." in spans(encoder, sample)[-1]
    assert sum(sample.loss_mask) < len(sample.loss_mask)
    talk = encoded(encoder, *TALK)
    assert talk.loss_mask.all()
    assert talk.input_ids.equal(encoded(encoder_of(family), *TALK).input_ids)


def test_all_text_crosses_no_boundary(encoder_of: Callable[..., TaskEncoder]) -> None:
    encoder = encoder_of("qwen2_5_vl", loss_on="all_text")
    rows = [Row(sample=encoded(encoder, ("user", text))) for text in ("one", "two words")]
    first, second = (row.sample.input_ids.tolist() for row in rows)
    packed = encoder.collate(rows, layout="packed", label_shift="next_token", pad_to_multiple_of=16)
    labels = packed["labels"][0].tolist()
    assert labels[: len(first)] == [*first[1:], -100]
    assert labels[len(first) : len(first) + len(second)] == [*second[1:], -100]
    assert set(labels[len(first) + len(second) :]) == {-100}
    padded = encoder.collate(rows, layout="padded", label_shift="none")["labels"].tolist()
    assert padded == [first + [-100] * (len(second) - len(first)), second]


def test_all_text_takes_any_roles(encoder_of: Callable[..., TaskEncoder]) -> None:
    encoder = encoder_of("qwen3_vl", loss_on="all_text")
    assert encoded(encoder, ("system", "s"), ("user", "a"), ("user", "b")).loss_mask.all()
    with pytest.raises(MaskError, match="control token"):
        encoded(encoder, ("user", "a<|im_end|>"))


def test_a_message_without_loss_is_left_out_of_all_text(encoder_of: Callable[..., TaskEncoder]) -> None:
    """Or refused: a row that asks for no loss on a message must not be trained on in full."""
    encoder = encoder_of("qwen3_vl", loss_on="all_text")
    try:
        sample = encoded(encoder, *TALK, marks={3: False})
    except MaskError:
        return
    assert "Two" not in "".join(spans(encoder, sample))


def test_kept_reasoning_is_not_trained_on_in_all_text(encoder_of: Callable[..., TaskEncoder]) -> None:
    encoder = encoder_of("qwen3_5", loss_on="all_text", thinking="keep")
    row = {"messages": [{"role": "user", "content": "?"}, {"role": "assistant", "content": "x", "thinking": "secret"}]}
    try:
        sample = encoder.encode_sample({"__key__": "k", "json": row})
    except MaskError:
        return
    assert "secret" not in "".join(spans(encoder, sample))


def test_a_refusal_names_the_setting_that_left_nothing(encoder_of: Callable[..., TaskEncoder]) -> None:
    with pytest.raises(MaskError) as error:
        encoded(encoder_of("qwen3_vl", train_terminator=False), ("user", "Q"), ("assistant", ""))
    assert "marked loss=False" not in error.value.reason
