"""A skeleton in, its assistant turns out: by the template's generation tags, or by search for turn boundaries."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from packloom.errors import MaskError
from packloom.task_encoders.family import Boundary
from packloom.task_encoders.skeleton import Placeholders, Skeleton, Slot, fill, mark
from packloom.task_encoders.template import ChatTemplate
from packloom.task_encoders.turns import Place, Span, TurnSpan, find_turns, match_turns
from packloom.types import ChatSample


class SpanMethod(Protocol):
    """Finds and proves the assistant turns of a conversation's shape; raises MaskError."""

    @property
    def name(self) -> str:
        """For reports: which step of the chain this is."""
        ...

    @property
    def ends(self) -> tuple[str, ...]:
        """Every terminator that a span can end on."""
        ...

    def find(self, skeleton: Skeleton, chat: ChatSample) -> tuple[TurnSpan, ...]:
        """The proved spans, in order."""
        ...


@dataclass(frozen=True, kw_only=True)
class TokenSearch:
    """Search for ``(start, ends)`` pairs in the template's own writing; ``name`` says who declared them."""

    name: str
    boundaries: tuple[Boundary, ...]
    prompt_prefixes: tuple[str, ...] = ()
    thought_end: str = ""

    @property
    def ends(self) -> tuple[str, ...]:
        """The ends of all pairs."""
        return tuple(sorted({end for boundary in self.boundaries for end in boundary.ends}))

    def find(self, skeleton: Skeleton, chat: ChatSample) -> tuple[TurnSpan, ...]:
        """Raises MaskError."""
        return find_turns(
            skeleton,
            chat,
            self.boundaries,
            prompt_prefixes=self.prompt_prefixes,
            thought_end=self.thought_end,
        )


@dataclass(frozen=True, kw_only=True)
class GenerationTags:
    """The template's ``{% generation %}`` tags, one pair per assistant turn.

    Tags may take in the white space after the terminator, which is never sampled: a span ends on its last terminator.
    """

    template: ChatTemplate
    placeholders: Placeholders
    ends: tuple[str, ...]
    prompt_prefixes: tuple[str, ...] = ()
    thought_end: str = ""
    name: str = "generation_tags"

    def find(self, skeleton: Skeleton, chat: ChatSample) -> tuple[TurnSpan, ...]:
        """Raises MaskError."""
        marked, _ = mark(chat)
        rendered, ranges = self.template.generation_ranges(marked)
        starts = skeleton.starts(fill(skeleton, marked, rendered, self.placeholders))
        spans = [self._span(skeleton, starts, start, end) for start, end in ranges]
        return match_turns(skeleton, chat, spans, prompt_prefixes=self.prompt_prefixes, thought_end=self.thought_end)

    def _span(self, skeleton: Skeleton, starts: Sequence[int], start: int, end: int) -> Span:
        if end <= start:
            raise MaskError("a generation tag encloses nothing", code="mask.empty")
        last = max(number for number, first in enumerate(starts) if first < end)
        piece = skeleton.pieces[last]
        inside = piece[: end - starts[last]] if isinstance(piece, str) else ""
        found = max(((inside.rfind(text), text) for text in self.ends), default=(-1, ""))
        if found[0] < 0 or inside[found[0] + len(found[1]) :].strip():
            raise MaskError("a generation tag closes before the turn's terminator", code="mask.terminator")
        return Span(start=_place(skeleton, starts, start), end=Place(piece=last, offset=found[0]), terminator=found[1])


def _place(skeleton: Skeleton, starts: Sequence[int], character: int) -> Place:
    """The place of a character; at the seam of two pieces, in the one that the template wrote."""
    number = max(index for index, first in enumerate(starts) if first <= character)
    if isinstance(skeleton.pieces[number], Slot) and starts[number] == character and number > 0:
        before = skeleton.pieces[number - 1]
        if isinstance(before, str):
            return Place(piece=number - 1, offset=len(before))
    return Place(piece=number, offset=character - starts[number])
