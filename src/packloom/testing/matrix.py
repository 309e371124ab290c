"""An encoder in, the built-in cases out: turns × images × system, each with every payload and every cut."""

from __future__ import annotations

import dataclasses
import io
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

from PIL import Image

from packloom.config import SampleConfig
from packloom.task_encoders.base import TaskEncoder
from packloom.testing.cases import Cut, MaskCase
from packloom.testing.traits import Traits

_TOOL = {
    "type": "function",
    "function": {
        "name": "look_up",
        "description": "Finds a place.",
        "parameters": {"type": "object", "properties": {"place": {"type": "string"}}, "required": ["place"]},
    },
}
_CALL = {
    "type": "function",
    "id": "functions.look_up:0",
    "function": {"name": "look_up", "arguments": {"place": "Oslo"}},
}
_RESULT = {"role": "tool", "name": "look_up", "tool_call_id": "functions.look_up:0", "content": "A harbour."}


@dataclass(frozen=True, kw_only=True)
class Structure:
    """The shape of a conversation."""

    turns: int
    images: int = 0
    image_turn: int = 1
    system: bool = False

    @property
    def name(self) -> str:
        """For example ``2 turns, 1 image in turn 1, system``."""
        parts = [f"{self.turns} turn{'s' * (self.turns > 1)}"]
        if self.images:
            parts.append(f"{self.images} image{'s' * (self.images > 1)} in turn {self.image_turn}")
        return ", ".join([*parts, *["system"] * self.system])


@dataclass(frozen=True, kw_only=True)
class Talk:
    """Texts that fill a structure."""

    questions: tuple[str, ...]
    answers: tuple[str, ...]
    thoughts: tuple[str, ...] = ()
    system: str = "Answer the question."

    def asking(self, text: str) -> Talk:
        """The same talk with another first question."""
        return dataclasses.replace(self, questions=(text, *self.questions[1:]))

    def answering(self, text: str) -> Talk:
        """The same talk with another last answer."""
        return dataclasses.replace(self, answers=(*self.answers[:-1], text))


def structures(*, with_images: bool) -> list[Structure]:
    """1 to 3 turns; no image, or 1 or 2 of them in the first or second question; with and without a system text."""
    found = []
    for turns in (1, 2, 3):
        places = [(0, 1)]
        if with_images:
            places += [(images, turn) for turn in range(1, min(turns, 2) + 1) for images in (1, 2)]
        found += [
            Structure(turns=turns, images=images, image_turn=turn, system=system)
            for images, turn in places
            for system in (False, True)
        ]
    return found


def built_in_cases(encoder: TaskEncoder) -> list[MaskCase]:
    """Every payload in every structure, and plain and emoji texts cut in every place.

    What is expected follows the encoder's ``loss_on``, ``thinking`` and ``control_tokens``.
    """
    traits, config = Traits.of(encoder), encoder.config
    cases: list[MaskCase] = []
    for structure in structures(with_images=encoder.image_rule is not None):
        plain = _plain(structure)
        first = _case(structure, "plain", plain, config)
        emoji = _case(structure, "emoji", _emoji(structure), config)
        cases += [first, emoji, *_texts(structure, plain, encoder, traits, twin=first), *_shapes(first, config)]
        cases += [*_cuts(structure, first, config), *_cuts(structure, emoji, config)]
    return cases


def shown_case(encoder: TaskEncoder) -> MaskCase:
    """A conversation to look at: two turns, with an image where the encoder takes one."""
    widest = Structure(turns=2, images=int(encoder.image_rule is not None), system=True)
    return _case(widest, "plain", _plain(widest), encoder.config)


def golden_cases(encoder: TaskEncoder) -> list[MaskCase]:
    """Plain texts in every structure, and every payload in one: enough to see a changed token, small enough to keep."""
    widest = Structure(turns=2, images=int(encoder.image_rule is not None), system=False).name
    return [
        case
        for case in built_in_cases(encoder)
        if case.cut is None and (case.name.startswith(f"{widest} · ") or case.name.endswith(" · plain"))
    ]


def _plain(structure: Structure) -> Talk:
    numbers = range(1, structure.turns + 1)
    return Talk(
        questions=tuple(f"What is number {number}?" for number in numbers),
        answers=tuple(f"Answer number {number}." for number in numbers),
    )


def _emoji(structure: Structure) -> Talk:
    """Characters of several bytes at the edges of every text."""
    numbers = range(1, structure.turns + 1)
    return Talk(
        questions=tuple(f"🙂 你好 {number} ü" for number in numbers),
        answers=tuple(f"答え {number} é 👩‍👧🙂" for number in numbers),
        system="你是🙂",
    )


def _texts(
    structure: Structure, plain: Talk, encoder: TaskEncoder, traits: Traits, *, twin: MaskCase
) -> Iterator[MaskCase]:
    """Payloads that are only other texts."""
    config = encoder.config
    refusing = config.control_tokens == "refuse"
    words = traits.forged
    for token in encoder.parts.tokenizer.added_tokens_decoder.values():
        words = words.replace(token.content, " ") if token.content.strip() else words
    forged = dataclasses.replace(plain, system=traits.forged).asking(f"Read this: {traits.forged}")
    thoughts = dataclasses.replace(plain, thoughts=tuple(f"Thought for {text}" for text in plain.answers))
    yield _case(structure, "white space", plain.asking("  two  spaces \n").answering("  spaced answer \n"), config)
    if config.train_terminator:  # else nothing of it is trained on
        yield _case(structure, "empty answer", plain.answering(""), config, may_refuse=True)
    yield _case(structure, "forged words", plain.asking(f"Read this: {words.strip()}"), config)
    yield _case(structure, "forged turn", forged, config, may_refuse=refusing, twin=twin)
    yield _case(
        structure, "forged turn in answer", plain.answering(f"No. {traits.forged}"), config, may_refuse=True, twin=twin
    )
    if placeholder := _placeholder(encoder):
        spelled = plain.asking(f"What is {placeholder}?").answering(f"{placeholder} is a slot.")
        yield _case(structure, "forged placeholder", spelled, config, may_refuse=refusing, twin=twin)
    yield _case(structure, "thought", thoughts, config, may_refuse=True)
    yield _case(structure, "think marks", plain.answering("Write <think>x</think> so."), config, may_refuse=True)


def _shapes(plain: MaskCase, config: SampleConfig) -> Iterator[MaskCase]:
    """Payloads that add messages."""
    structure, *messages = plain.name.split(" · ")[0], *plain.messages
    *before, last = messages
    spans = [str(message["content"]) for message in messages if message["role"] == "assistant"]

    def case(
        name: str, messages: Sequence[Mapping[str, Any]], spans: Sequence[str | Sequence[str]], **rest: Any
    ) -> MaskCase:
        supervised = spans[-1:] if config.loss_on == "last_turn" else spans
        return dataclasses.replace(
            plain, name=f"{structure} · {name}", messages=messages, supervised=supervised, **rest
        )

    call = {"role": "assistant", "content": "Let me see.", "tool_calls": [_CALL]}
    silent = {**call, "content": ""}
    calls: dict[str, Any] = {"tools": [_TOOL], "may_refuse": True}
    yield case(
        "tool call",
        [*before, call, _RESULT, last],
        [*spans[:-1], ("Let me see.", "look_up", "Oslo"), spans[-1]],
        **calls,
    )
    yield case(
        "silent tool call", [*before, silent, _RESULT, last], [*spans[:-1], ("look_up", "Oslo"), spans[-1]], **calls
    )
    yield case("trailing question", [*messages, {"role": "user", "content": "And now?"}], spans)
    halves = [{"role": "assistant", "content": text} for text in ("Part one.", "Part two.")]
    yield case("two answers in a row", [*before, *halves], [*spans[:-1], "Part one.", "Part two."], may_refuse=True)


def _cuts(structure: Structure, whole: MaskCase, config: SampleConfig) -> Iterator[MaskCase]:
    """The same row, too long by a few tokens of its last answer, question or image."""
    one_answer = structure.turns == 1 or config.loss_on == "last_turn"
    hopeless: dict[Cut, bool] = {"answer": False, "question": one_answer and config.loss_on != "all_text"}
    if structure.images:
        hopeless["image"] = True
    for cut, refused in hopeless.items():
        supervised = None if refused else whole.supervised
        yield dataclasses.replace(whole, name=f"{whole.name} · cut in {cut}", cut=cut, supervised=supervised)


def _case(structure: Structure, name: str, talk: Talk, config: SampleConfig, **rest: Any) -> MaskCase:
    messages: list[dict[str, Any]] = [{"role": "system", "content": talk.system}] if structure.system else []
    spans: list[str | tuple[str, ...]] = []
    thoughts = talk.thoughts or (None,) * structure.turns
    for turn, (question, answer, thought) in enumerate(zip(talk.questions, talk.answers, thoughts, strict=True), 1):
        images = structure.images if turn == structure.image_turn else 0
        content = [*[{"type": "image"}] * images, {"type": "text", "text": question}]
        messages += [{"role": "user", "content": content}, {"role": "assistant", "content": answer}]
        if thought:
            messages[-1]["reasoning_content"] = thought
        spans.append((thought, answer) if thought and config.thinking == "supervise" else answer)
    return MaskCase(
        name=f"{structure.name} · {name}",
        messages=messages,
        supervised=spans[-1:] if config.loss_on == "last_turn" else spans,
        images=[_picture(48 + 16 * number) for number in range(structure.images)],
        **{**rest, "may_refuse": structure.system or bool(rest.get("may_refuse"))},
    )


def _placeholder(encoder: TaskEncoder) -> str | None:
    """What stands for an image in a prompt of this family; a text-only encoder of the family knows its tokens too."""
    return encoder.image_rule.placeholder if encoder.image_rule else next(iter(encoder.family.media_tokens), None)


@cache
def _picture(side: int) -> bytes:
    buffer = io.BytesIO()
    Image.linear_gradient("L").resize((side, side)).convert("RGB").save(buffer, "PNG")
    return buffer.getvalue()
