"""A conversation and its rendering in; where its texts stand and which tokens are trained on, proved, out."""

from __future__ import annotations

import itertools
import logging
import re
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np

from packloom.config import SampleConfig
from packloom.errors import MaskError
from packloom.task_encoders.prompt import Prompt
from packloom.task_encoders.shape import shape_of
from packloom.task_encoders.skeleton import Placeholders, Skeleton, Slot, fill, render_skeleton
from packloom.task_encoders.span_methods import SpanMethod
from packloom.task_encoders.template import ChatTemplate
from packloom.task_encoders.turns import Place, TurnSpan
from packloom.types import ChatSample, MediaPart, TextPart

logger = logging.getLogger(__name__)

_KNOWN_SHAPES = 4096
_KNOWN_PIECES = 200_000  # a row with many tools has thousands
#: Tokens between two media tokens that still belong to one image, e.g. the word in Kimi's media header.
_MARK_GAP = 3


@dataclass(frozen=True, kw_only=True, slots=True)
class Plan:
    """What is the same for all conversations of one shape."""

    skeleton: Skeleton
    spans: tuple[TurnSpan, ...]
    images: tuple[int, ...]  # the pieces that are images


@dataclass(frozen=True, kw_only=True)
class AssistantMasks:
    """Finds the assistant's tokens of one family with one template.

    The search runs once per shape of conversation (roles, parts, what is empty) on the template's own writing, and is
    proved there; each row is then proved to be that shape with its own texts in it.
    """

    method: SpanMethod
    template: ChatTemplate
    placeholders: Placeholders
    terminators: Mapping[str, int]  # text of each turn end → its token id
    media_ids: np.ndarray = field(compare=False)  # [M] int64, the family's media tokens
    final_end: str  # written behind a last assistant turn, see Family.final_end
    config: SampleConfig
    media_label: str = ""  # see Family.media_label
    _plans: dict[Hashable, Plan] = field(default_factory=dict, compare=False, repr=False)
    _said: set[str] = field(default_factory=set, compare=False, repr=False)

    def plan(self, chat: ChatSample, rendered: str) -> tuple[Plan, list[str]]:
        """The plan of this conversation's shape, and the text of each piece of its skeleton in ``rendered``.

        Raises MaskError or CookError.
        """
        plan = self._find(chat)
        try:
            return plan, fill(plan.skeleton, chat, rendered, self.placeholders)
        except MaskError:
            plan = self._find(chat, fresh=True)  # a template may write the date
            return plan, fill(plan.skeleton, chat, rendered, self.placeholders)

    def _find(self, chat: ChatSample, *, fresh: bool = False) -> Plan:
        shape = shape_of(chat)
        if fresh or shape not in self._plans:
            pieces = sum(len(plan.skeleton.pieces) for plan in self._plans.values())
            if len(self._plans) >= _KNOWN_SHAPES or pieces >= _KNOWN_PIECES:
                self._plans.clear()
            self._plans[shape] = self._make(chat)
        return self._plans[shape]

    def _make(self, chat: ChatSample) -> Plan:
        suffix = self.final_end if chat.messages[-1].role == "assistant" else ""
        skeleton = render_skeleton(self.template, chat, placeholders=self.placeholders, suffix=suffix)
        self._say_if_moved(skeleton)
        spans = () if self.config.loss_on == "all_text" else self._turns(skeleton, chat, suffix)
        pieces = enumerate(skeleton.pieces)
        images = tuple(number for number, piece in pieces if isinstance(piece, Slot) and piece.kind == "image")
        return Plan(skeleton=skeleton, spans=spans, images=images)

    def _turns(self, skeleton: Skeleton, chat: ChatSample, suffix: str) -> tuple[TurnSpan, ...]:
        """The proved spans. A blank text of another role leaves no trace in a span that runs over it; a word does."""
        filled = _with_words(chat)
        if filled is not chat:
            self.method.find(
                render_skeleton(self.template, filled, placeholders=self.placeholders, suffix=suffix), filled
            )
        spans = self.method.find(skeleton, chat)
        if self.config.thinking == "keep" and any(not span.thought_apart for span in spans):
            raise MaskError(
                "thinking='keep' cannot tell the reasoning from the answer: the template writes it behind the answer,"
                " or between marks that the family does not declare",
                code="thinking.not_apart",
                hint="set thinking='supervise' or 'drop'",
            )
        return spans

    def _all_text(self, prompt: Prompt, plan: Plan, chat: ChatSample) -> np.ndarray:
        """[C] bool: all but images, what the template writes between the marks of one image, and unmarked turns."""
        mask = np.ones(len(prompt.ids), dtype=bool)
        texts = np.zeros(len(prompt.ids), dtype=bool)  # tokens of the data's own texts
        edges = [prompt.places.first_from(character) for character in (*prompt.piece_starts, len(prompt.text))]
        for number, (piece, first, last) in enumerate(zip(plan.skeleton.pieces, edges, edges[1:], strict=False)):
            if not isinstance(piece, Slot):
                continue
            texts[first:last] = piece.kind != "image"
            kept = piece.kind == "reasoning" and self.config.thinking == "keep"
            unmarked = piece.message >= 0 and chat.messages[piece.message].loss is False
            if piece.kind == "image" or kept or unmarked:
                mask[first:last] = False
                if kept or unmarked:
                    _mask_crossing(mask, prompt, number, first)
        media = np.flatnonzero(np.isin(prompt.ids, self.media_ids))
        # a text of the data, or the end of a turn, parts two images however near they are
        parted = texts | np.isin(prompt.ids, list(self.terminators.values()))
        for left, right in itertools.pairwise(media):
            if right - left <= _MARK_GAP and not parted[left:right].any():
                mask[left:right] = False
        if not self.config.train_terminator:
            mask &= ~np.isin(prompt.ids, list(self.terminators.values()))
        return mask

    @cached_property
    def _media_marks(self) -> tuple[str, ...]:
        return tuple(self.template.parts.tokenizer.convert_ids_to_tokens(self.media_ids.tolist()))

    def _say_if_moved(self, skeleton: Skeleton) -> None:
        """Warn, once, where the template puts images elsewhere among the texts than the data has them."""
        slots = [piece for piece in skeleton.pieces if isinstance(piece, Slot) and piece.part >= 0]
        written = [(slot.message, slot.part) for slot in slots]
        if written != sorted(written) and any(slot.kind == "image" for slot in slots) and "moved" not in self._said:
            self._said.add("moved")
            logger.warning("%s: the chat template moves images among the texts of a turn", self.template.parts.name)

    def mask(self, prompt: Prompt, plan: Plan, chat: ChatSample) -> np.ndarray:
        """[C] bool over the compact prompt: True on what is trained on, media tokens not yet taken out."""
        if self.config.loss_on == "all_text":
            return self._all_text(prompt, plan, chat)
        mask = np.zeros(len(prompt.ids), dtype=bool)
        for span in plan.spans[-1:] if self.config.loss_on == "last_turn" else plan.spans:
            if chat.messages[span.message].loss is False:
                continue
            start = _token_at(prompt, span.start if self.config.thinking == "supervise" else span.answer)
            end = _token_at(prompt, span.end)
            if prompt.ids[end] != self.terminators[span.terminator]:
                raise MaskError(
                    f"the turn end {span.terminator!r} of message {span.message} is not one token there",
                    code="mask.terminator",
                )
            mask[start : end + self.config.train_terminator] = True
            for first, last in _media_ranges(prompt, plan, span, self._media_marks, self.media_label):
                begin, end_before = prompt.places.edge(first)  # a token that reaches into a medium's text is masked too
                mask[begin - (end_before > first) : prompt.places.first_from(last)] = False
        return mask


def _token_at(prompt: Prompt, place: Place) -> int:
    """The token whose first character is at this place."""
    character = prompt.piece_starts[place.piece] + place.offset
    index, end_before = prompt.places.edge(character)
    if index == len(prompt.ids) or end_before > character:
        raise MaskError(
            "a token lies across the edge of an assistant turn: the answer merges with the template's"
            f" {prompt.text[max(0, character - 12) : character]!r}",
            code="mask.merged_edge",
            hint="strip white space at the start and end of the answer",
        )
    return index


def _with_words(chat: ChatSample) -> ChatSample:
    """The conversation with a word for every blank text of a role that is not the assistant; itself without any."""
    messages = tuple(
        replace(message, parts=(TextPart(text="word"),))
        if message.role != "assistant"
        and not message.text.strip()
        and not any(isinstance(p, MediaPart) for p in message.parts)
        else message
        for message in chat.messages
    )
    return chat if messages == chat.messages else replace(chat, messages=messages)


def _mask_crossing(mask: np.ndarray, prompt: Prompt, piece: int, first: int) -> None:
    """A token that begins before a text and reaches into it holds a part of it."""
    if prompt.places.edge(prompt.piece_starts[piece])[1] > prompt.piece_starts[piece]:
        mask[first - 1] = False


def _media_ranges(
    prompt: Prompt, plan: Plan, span: TurnSpan, marks: Sequence[str], label: str
) -> list[tuple[int, int]]:
    """The characters of each medium in an assistant turn, with its label, its marks and the white space around them.

    The model never writes these: an image in an answer is context. What the template writes beside them for reasoning
    or calls is the model's own.
    """
    if not plan.images:
        return []
    images = [number for number in plan.images if span.start.piece <= number < span.end.piece]
    first, last = (prompt.piece_starts[place.piece] + place.offset for place in (span.start, span.end))
    starts, pieces = prompt.piece_starts, plan.skeleton.pieces
    ranges = []
    for number in images:
        left, right = starts[number], starts[number + 1] if number + 1 < len(starts) else last
        if number and isinstance(before := pieces[number - 1], str):
            begins = min((before.find(mark) for mark in marks if mark in before), default=len(before))
            if label and (found := re.search(f"(?:{label})\\Z", before[:begins])):
                begins = found.start()
            left -= len(before) - len(before[:begins].rstrip())
        if number + 1 < len(pieces) and isinstance(after := pieces[number + 1], str):
            ends = (after.rfind(mark) + len(mark) for mark in marks if mark in after)
            rest = after[max(ends, default=0) :]
            right += len(after) - len(rest.lstrip())
        ranges.append((max(first, left), min(last, right)))
    return ranges
