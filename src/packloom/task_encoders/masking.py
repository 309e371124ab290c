"""A conversation and its rendering in; where its texts stand and which tokens are trained on, proved, out."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from packloom.errors import MaskError, ProcessorError
from packloom.task_encoders.family import Family
from packloom.task_encoders.processors import ProcessorParts
from packloom.task_encoders.prompt import Prompt
from packloom.task_encoders.skeleton import Skeleton, fill, render_skeleton, shape_of
from packloom.task_encoders.template import ChatTemplate
from packloom.task_encoders.turns import Place, TurnSpan, find_turns
from packloom.types import ChatSample

_KNOWN_SHAPES = 4096


@dataclass(frozen=True, kw_only=True, slots=True)
class Plan:
    """What is the same for all conversations of one shape."""

    skeleton: Skeleton
    spans: tuple[TurnSpan, ...]


@dataclass(frozen=True, kw_only=True)
class AssistantMasks:
    """Finds the assistant's tokens of one family with one template.

    The search runs once per shape of conversation (roles, parts, what is empty) on the template's own writing, and is
    proved there; each row is then proved to be that shape with its own texts in it.
    """

    family: Family
    template: ChatTemplate
    placeholder: str | None
    terminators: Mapping[str, int]  # text of each turn end → its token id
    _plans: dict[Hashable, Plan] = field(default_factory=dict, compare=False, repr=False)

    def plan(self, chat: ChatSample, rendered: str) -> tuple[Plan, list[str]]:
        """The plan of this conversation's shape, and the text of each piece of its skeleton in ``rendered``.

        Raises MaskError or CookError.
        """
        plan = self._find(chat)
        try:
            return plan, fill(plan.skeleton, chat, rendered, self.placeholder)
        except MaskError:
            plan = self._find(chat, fresh=True)  # a template may write the date
            return plan, fill(plan.skeleton, chat, rendered, self.placeholder)

    def _find(self, chat: ChatSample, *, fresh: bool = False) -> Plan:
        shape = shape_of(chat)
        if fresh or shape not in self._plans:
            if len(self._plans) >= _KNOWN_SHAPES:
                self._plans.clear()
            self._plans[shape] = self._make(chat)
        return self._plans[shape]

    def _make(self, chat: ChatSample) -> Plan:
        suffix = self.family.final_end if chat.messages[-1].role == "assistant" else ""
        skeleton = render_skeleton(self.template, chat, placeholder=self.placeholder, suffix=suffix)
        spans = find_turns(skeleton, chat, self.family.boundaries, self.family.prompt_prefixes)
        return Plan(skeleton=skeleton, spans=spans)

    def mask(self, prompt: Prompt, plan: Plan, chat: ChatSample) -> np.ndarray:
        """[C] bool over the compact prompt: True on each trained turn, its terminator included."""
        mask = np.zeros(len(prompt.ids), dtype=bool)
        for span in plan.spans:
            if chat.messages[span.message].loss is False:
                continue
            start, end = _token_at(prompt, span.start), _token_at(prompt, span.end)
            if prompt.ids[end] != self.terminators[span.terminator]:
                raise MaskError(
                    f"the turn end {span.terminator!r} of message {span.message} is not one token there",
                    code="mask.terminator",
                )
            mask[start : end + 1] = True
        return mask


def terminator_ids(parts: ProcessorParts, family: Family) -> dict[str, int]:
    """The token of every declared turn end; raises ProcessorError for one that this tokenizer does not have."""
    ends = {end for boundary in family.boundaries for end in boundary.ends}
    return {end: _one_token(parts, family, end) for end in sorted(ends)}


def _one_token(parts: ProcessorParts, family: Family, text: str) -> int:
    ids: Sequence[int] = parts.tokenizer(text, add_special_tokens=False)["input_ids"]
    if len(ids) != 1:
        raise ProcessorError(
            f"{parts.name}: the turn end {text!r} of the family {family.name} is {len(ids)} tokens here, not one:"
            " pass the right model_type"
        )
    return ids[0]


def _token_at(prompt: Prompt, place: Place) -> int:
    """The token whose first character is at this place."""
    character = prompt.piece_starts[place.piece] + place.offset
    index = int(np.searchsorted(prompt.offsets[:, 0], character, side="left"))
    crossed = index > 0 and prompt.offsets[index - 1, 1] > character
    if index == len(prompt.ids) or crossed:
        raise MaskError(
            "a token lies across the edge of an assistant turn: the answer merges with the template's"
            f" {prompt.text[max(0, character - 12) : character]!r}",
            code="mask.merged_edge",
            hint="strip white space at the start and end of the answer",
        )
    return index
