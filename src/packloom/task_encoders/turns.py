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
    """The trained part of assistant message ``message``: from ``start`` to the terminator, which stands at ``end``.

    ``answer`` is where the answer starts behind the turn's reasoning; without reasoning it is ``start``.
    ``thought_apart``: nothing of the answer stands before the reasoning, and what closes it is known.
    """

    message: int
    start: Place
    answer: Place
    end: Place
    terminator: str
    thought_apart: bool = True


@dataclass(frozen=True, kw_only=True, slots=True)
class Span:
    """From ``start`` to the terminator at ``end``, not yet proved to be a turn."""

    start: Place
    end: Place
    terminator: str


def find_turns(
    skeleton: Skeleton,
    chat: ChatSample,
    boundaries: Sequence[Boundary],
    *,
    prompt_prefixes: Sequence[str] = (),
    thought_end: str = "",
) -> tuple[TurnSpan, ...]:
    """The span of every assistant turn, by search in the template's own writing only; raises MaskError.

    ``prompt_prefixes`` are texts that inference supplies behind the header, e.g. an empty thought: they belong to the
    prompt. The longest that fits is skipped. ``thought_end`` closes reasoning; the answer follows it.
    """
    return match_turns(
        skeleton, chat, _search(skeleton, boundaries), prompt_prefixes=prompt_prefixes, thought_end=thought_end
    )


def match_turns(
    skeleton: Skeleton, chat: ChatSample, spans: Sequence[Span], *, prompt_prefixes: Sequence[str], thought_end: str
) -> tuple[TurnSpan, ...]:
    """Prove that spans, however they were found, are the assistant turns one to one and in order.

    Some templates write a system turn like an assistant's: a span of another role's texts alone is no assistant turn.
    """
    turns = [number for number, message in enumerate(chat.messages) if message.role == "assistant"]
    if not turns:
        raise MaskError("there is no assistant turn, so nothing to train on", code="mask.no_assistant")
    spans = [span for span in spans if not _owners(skeleton, span) or _owners(skeleton, span) & set(turns)]
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
            start=(start := _skip_prompt(skeleton, span.start, prompt_prefixes)),
            answer=_behind_reasoning(skeleton, span, thought_end) or start,
            end=span.end,
            terminator=span.terminator,
            thought_apart=_is_thought_apart(skeleton, span, thought_end),
        )
        for span, turn in zip(spans, turns, strict=True)
    )


def _search(skeleton: Skeleton, boundaries: Sequence[Boundary]) -> list[Span]:
    """Each end with the nearest start before it that it can end. A start that another start follows, or that none
    ends, opens nothing: whether a turn was missed by that is for the proof to say."""
    spans: list[Span] = []
    opened: tuple[Place, Boundary] | None = None
    for place, text, boundary in _events(skeleton, boundaries):
        if boundary is not None:
            opened = (place, boundary)
        elif opened is not None and text in opened[1].ends:
            start, kind = opened
            opened = None
            if start != place or not kind.continues:
                spans.append(Span(start=start, end=place, terminator=text))
    return spans


def _events(skeleton: Skeleton, boundaries: Sequence[Boundary]) -> Iterator[tuple[Place, str, Boundary | None]]:
    """Starts (the place after a header, with its boundary) and ends (the place and text of a terminator), in order.

    Where both stand at one place the turn is empty: it starts there, then ends.
    """
    texts = {end for boundary in boundaries for end in boundary.ends}
    ends = re.compile("|".join(map(re.escape, sorted(texts, key=len, reverse=True))) or r"(?!)")
    for number, piece in enumerate([*skeleton.pieces, skeleton.suffix]):
        if isinstance(piece, Slot):
            continue
        found: list[tuple[int, int, str, Boundary | None]] = [
            (m.end(), 0, "", boundary) for boundary in boundaries for m in re.finditer(re.escape(boundary.start), piece)
        ]
        found += [(m.start(), 1, m.group(), None) for m in ends.finditer(piece)]
        for offset, _, text, which in sorted(found, key=lambda event: event[:2]):
            yield Place(piece=number, offset=offset), text, which


def _owners(skeleton: Skeleton, span: Span) -> set[int]:
    """The messages that have a part in the span."""
    pieces = skeleton.pieces[span.start.piece : span.end.piece]
    return {piece.message for piece in pieces if isinstance(piece, Slot)}


def _prove(span: Span, turn: int, skeleton: Skeleton) -> None:
    """Only this turn's own texts and calls stand in its span."""
    for other in sorted(_owners(skeleton, span) - {turn}):
        part = f"a part of message {other}" if other >= 0 else "a part of a tool's schema"
        raise MaskError(f"the span of assistant message {turn} holds {part}", code="mask.span_text")


def _prove_nothing_is_outside(spans: Sequence[Span], turns: Sequence[int], skeleton: Skeleton) -> None:
    """No assistant text stands outside the span of its turn, and every call stands in it (and maybe elsewhere)."""
    places = {turn: range(span.start.piece, span.end.piece + 1) for span, turn in zip(spans, turns, strict=True)}
    inside = {skeleton.pieces[n] for place in places.values() for n in place if n < len(skeleton.pieces)}
    for number, piece in enumerate(skeleton.pieces):
        if not isinstance(piece, Slot) or piece.message not in places:
            continue
        lost = piece.owned and piece not in inside if piece.kind == "data" else number not in places[piece.message]
        if lost:
            raise MaskError(
                f"a part of assistant message {piece.message} stands outside its span", code="mask.span_text"
            )


def _skip_prompt(skeleton: Skeleton, start: Place, prefixes: Sequence[str]) -> Place:
    piece = skeleton.pieces[start.piece] if start.piece < len(skeleton.pieces) else skeleton.suffix
    if isinstance(piece, Slot):
        return start
    fitting = [len(prefix) for prefix in prefixes if piece.startswith(prefix, start.offset)]
    return Place(piece=start.piece, offset=start.offset + max(fitting, default=0))


def _is_thought_apart(skeleton: Skeleton, span: Span, thought_end: str) -> bool:
    """Whether the reasoning stands before all of the answer, with a known mark or nothing but white space behind it."""
    inside = list(enumerate(skeleton.pieces))[span.start.piece : span.end.piece + 1]
    thoughts = [number for number, piece in inside if isinstance(piece, Slot) and piece.kind == "reasoning"]
    if not thoughts:
        return True
    if any(isinstance(piece, Slot) for number, piece in inside if number < thoughts[0]):
        return False
    following = skeleton.pieces[thoughts[-1] + 1] if thoughts[-1] + 1 < len(skeleton.pieces) else ""
    if isinstance(following, Slot):
        return True
    written = following[: span.end.offset] if span.end.piece == thoughts[-1] + 1 else following
    return thought_end in following or not written.strip()


def _behind_reasoning(skeleton: Skeleton, span: Span, thought_end: str) -> Place | None:
    """The first place behind the reasoning in a span, and behind what closes it with the white space after that."""
    for number in range(span.start.piece, min(span.end.piece, len(skeleton.pieces) - 1)):
        piece, following = skeleton.pieces[number], skeleton.pieces[number + 1]
        if not isinstance(piece, Slot) or piece.kind != "reasoning":
            continue
        if isinstance(following, Slot):
            return Place(piece=number + 1, offset=0)
        offset = following.find(thought_end) + len(thought_end) if thought_end in following else 0
        offset += len(following[offset:]) - len(following[offset:].lstrip())
        return Place(piece=number + 1, offset=min(offset, span.end.offset if span.end.piece == number + 1 else offset))
    return None
