"""A skeleton and the declared turn boundaries in; where each assistant turn is trained on, proved, out."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from packloom.errors import MaskError
from packloom.task_encoders.family import Boundary
from packloom.task_encoders.skeleton import Skeleton, Slot
from packloom.types import ChatSample


@dataclass(frozen=True, kw_only=True, order=True, slots=True)
class Place:
    """A character of the template's own writing: ``offset`` into piece ``piece`` of the skeleton."""

    piece: int
    offset: int


@dataclass(frozen=True, kw_only=True, slots=True)
class TurnSpan:
    """The trained part of assistant message ``message``: from ``start`` to the terminator, which stands at ``end``."""

    message: int
    start: Place
    end: Place
    terminator: str


@dataclass(frozen=True, kw_only=True, slots=True)
class _Span:
    start: Place
    end: Place
    terminator: str


def find_turns(
    skeleton: Skeleton, chat: ChatSample, boundaries: Sequence[Boundary], prompt_prefixes: Sequence[str]
) -> tuple[TurnSpan, ...]:
    """The span of every assistant turn, by search in the template's own writing only; raises MaskError.

    ``prompt_prefixes`` are texts that inference supplies behind the header, e.g. an empty thought: they belong to the
    prompt. The longest that fits is skipped.
    """
    spans = _search(skeleton, boundaries)
    turns = [number for number, message in enumerate(chat.messages) if message.role == "assistant"]
    if not turns:
        raise MaskError("there is no assistant turn, so nothing to train on", code="mask.no_assistant")
    if len(spans) != len(turns):
        raise MaskError(
            f"{len(turns)} assistant turns, but the template writes {len(spans)} complete ones",
            code="mask.span_count",
            hint="it may join or refuse turns of the same role: alternate user and assistant",
        )
    for span, turn in zip(spans, turns, strict=True):
        _prove(span, turn, skeleton)
    _prove_nothing_is_outside(spans, turns, skeleton)
    return tuple(
        TurnSpan(
            message=turn,
            start=_skip_prompt(skeleton, span.start, prompt_prefixes),
            end=span.end,
            terminator=span.terminator,
        )
        for span, turn in zip(spans, turns, strict=True)
    )


def _search(skeleton: Skeleton, boundaries: Sequence[Boundary]) -> list[_Span]:
    """Each end with the nearest start before it. A start that another start follows, or none ends, opens nothing:
    whether a turn was missed by that is for the proof to say."""
    spans: list[_Span] = []
    for boundary in boundaries:
        start: Place | None = None
        for place, text in _events(skeleton, boundary):
            if text is None:
                start = place
            elif start is not None:
                spans.append(_Span(start=start, end=place, terminator=text))
                start = None
    return sorted(spans, key=lambda span: span.start)


def _events(skeleton: Skeleton, boundary: Boundary) -> Iterator[tuple[Place, str | None]]:
    """Starts (the place after the header, None) and ends (the place and text of a terminator), in order.

    Where both stand at one place the turn is empty: it starts there, then ends.
    """
    ends = re.compile("|".join(map(re.escape, sorted(boundary.ends, key=len, reverse=True))))
    starts = re.compile(re.escape(boundary.start))
    for number, piece in enumerate([*skeleton.pieces, skeleton.suffix]):
        if isinstance(piece, Slot):
            continue
        found: list[tuple[int, int, str | None]] = [(m.end(), 0, None) for m in starts.finditer(piece)]
        found += [(m.start(), 1, m.group()) for m in ends.finditer(piece)]
        for offset, _, text in sorted(found, key=lambda event: event[:2]):
            yield Place(piece=number, offset=offset), text


def _prove(span: _Span, turn: int, skeleton: Skeleton) -> None:
    """Only this turn's own texts stand in its span."""
    for piece in skeleton.pieces[span.start.piece : span.end.piece]:
        if isinstance(piece, Slot) and piece.message != turn:
            raise MaskError(
                f"the span of assistant message {turn} holds a part of message {piece.message}", code="mask.span_text"
            )


def _prove_nothing_is_outside(spans: Sequence[_Span], turns: Sequence[int], skeleton: Skeleton) -> None:
    """No assistant text stands outside the span of its turn."""
    for number, piece in enumerate(skeleton.pieces):
        if not isinstance(piece, Slot) or piece.message not in turns:
            continue
        span = spans[turns.index(piece.message)]
        if not span.start.piece <= number <= span.end.piece:
            raise MaskError(
                f"a part of assistant message {piece.message} stands outside its span", code="mask.span_text"
            )


def _skip_prompt(skeleton: Skeleton, start: Place, prefixes: Sequence[str]) -> Place:
    piece = skeleton.pieces[start.piece] if start.piece < len(skeleton.pieces) else skeleton.suffix
    if isinstance(piece, Slot):
        return start
    fitting = [len(prefix) for prefix in prefixes if piece.startswith(prefix, start.offset)]
    return Place(piece=start.piece, offset=start.offset + max(fitting, default=0))
