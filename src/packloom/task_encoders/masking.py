"""Token ids and declared turn boundaries in, proved assistant spans out."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from packloom.errors import MaskError, ProcessorError
from packloom.task_encoders.family import Boundary
from packloom.task_encoders.processors import ProcessorParts
from packloom.types import ChatSample, Message, TextPart


@dataclass(frozen=True, kw_only=True, slots=True)
class Span:
    """Trained tokens start..end, end exclusive; the last of them is the terminator."""

    start: int
    end: int


@dataclass(frozen=True, kw_only=True, slots=True)
class TokenBoundary:
    """A Boundary as token ids."""

    start_ids: tuple[int, ...]
    end_ids: tuple[tuple[int, ...], ...]


def resolve_boundaries(parts: ProcessorParts, boundaries: Sequence[Boundary]) -> tuple[TokenBoundary, ...]:
    """The ids of each boundary with this tokenizer; raises ProcessorError if an end is not one known token."""
    return tuple(
        TokenBoundary(
            start_ids=_ids(parts, boundary.start),
            end_ids=tuple(_terminator(parts, end) for end in boundary.ends),
        )
        for boundary in boundaries
    )


def _ids(parts: ProcessorParts, text: str) -> tuple[int, ...]:
    return tuple(parts.tokenizer(text, add_special_tokens=False)["input_ids"])


def _terminator(parts: ProcessorParts, text: str) -> tuple[int, ...]:
    ids = _ids(parts, text)
    if len(ids) != 1:
        raise ProcessorError(
            f"{parts.name}: the turn end {text!r} is {len(ids)} tokens ({list(ids)}), not one: this tokenizer does not"
            " belong to the declared family; pass the right model_type"
        )
    return ids


def find_spans(ids: np.ndarray, boundaries: Sequence[TokenBoundary]) -> list[Span]:
    """The spans between each start and the first end after it, in order. ``ids`` is [L].

    Raises MaskError where a turn starts before the one before it has ended, or never ends.
    """
    found: list[Span] = []
    for boundary in boundaries:
        starts = _occurrences(ids, boundary.start_ids) + len(boundary.start_ids)
        ends = np.sort(np.concatenate([_occurrences(ids, end) + len(end) for end in boundary.end_ids]))
        nearest = np.searchsorted(ends, starts, side="right")
        if len(starts) and nearest[-1] == len(ends):
            raise MaskError(
                f"the assistant turn that starts at token {starts[-1]} has no end", code="mask.unterminated"
            )
        found += [Span(start=int(s), end=int(e)) for s, e in zip(starts, ends[nearest], strict=True)]
    found.sort(key=lambda span: span.start)
    for before, after in itertools.pairwise(found):
        if after.start < before.end:
            raise MaskError(
                f"an assistant turn starts at token {after.start}, inside the one of {before.start}..{before.end}",
                code="mask.nested",
            )
    return found


def _occurrences(ids: np.ndarray, pattern: Sequence[int]) -> np.ndarray:
    """Where the pattern starts in ids."""
    positions = np.flatnonzero(ids[: max(0, len(ids) - len(pattern) + 1)] == pattern[0])
    for offset, token in enumerate(pattern[1:], start=1):
        positions = positions[ids[positions + offset] == token]
    return positions


def prove_spans(spans: Sequence[Span], chat: ChatSample, rendered: str, offsets: np.ndarray) -> list[Message]:
    """Prove that the spans are the assistant turns, one to one and in order, and return those turns.

    ``offsets`` is [L, 2], the characters of each token in ``rendered``. Each span's text must be its turn's text; where
    a turn has more than text (media, reasoning, tool calls), its texts must stand in the span in order. Raises
    MaskError.
    """
    turns = [message for message in chat.messages if message.role == "assistant"]
    if not turns:
        raise MaskError("there is no assistant turn, so nothing to train on", code="mask.no_assistant")
    if len(spans) != len(turns):
        raise MaskError(
            f"{len(turns)} assistant turns, but {len(spans)} spans were found in the tokens",
            code="mask.span_count",
            hint="a turn that starts with white space can merge with its header: strip it",
        )
    for span, turn in zip(spans, turns, strict=True):
        _prove_text(rendered[offsets[span.start, 0] : offsets[span.end - 1, 0]], turn)
    return turns


def _prove_text(found: str, turn: Message) -> None:
    plain = not turn.tool_calls and turn.reasoning is None and all(isinstance(part, TextPart) for part in turn.parts)
    if plain and found.strip() != turn.text.strip():
        raise MaskError(f"the span holds {found!r}, but the turn says {turn.text!r}", code="mask.span_text")
    position = 0
    for part in turn.parts:
        text = part.text.strip() if isinstance(part, TextPart) else ""
        position = found.find(text, position)
        if position < 0:
            raise MaskError(f"the span {found!r} lacks the turn's text {text!r}", code="mask.span_text")
        position += len(text)


def loss_mask(num_tokens: int, spans: Sequence[Span], turns: Sequence[Message]) -> np.ndarray:
    """[L] bool, True on the spans of turns that are to be trained on."""
    mask = np.zeros(num_tokens, dtype=bool)
    for span, turn in zip(spans, turns, strict=True):
        mask[span.start : span.end] = turn.loss is not False
    return mask
