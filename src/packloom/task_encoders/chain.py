"""A family and a chat template in, the method that finds this template's assistant turns, tested on probes, out.

The order of trust: the template's generation tags; search for the boundaries that the family declares; search for
boundaries inferred from the template; else an error that says why each failed.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence

import numpy as np

from packloom.errors import CookError, MaskError, ProcessorError
from packloom.task_encoders.family import Boundary, Family
from packloom.task_encoders.skeleton import Placeholders, Skeleton, Slot, render_skeleton
from packloom.task_encoders.span_methods import GenerationTags, SpanMethod, TokenSearch
from packloom.task_encoders.template import ChatTemplate
from packloom.types import ChatSample, MediaKind, MediaPart, Message, Role, TextPart

logger = logging.getLogger(__name__)

#: Proves a method on one conversation and returns its mask [C] bool; raises MaskError or CookError.
SelfTest = Callable[[SpanMethod, ChatSample], np.ndarray]


def choose_method(
    template: ChatTemplate, family: Family, *, placeholders: Placeholders, special_tokens: Sequence[str], test: SelfTest
) -> SpanMethod:
    """The first method of the chain that passes ``test`` on probe conversations; raises ProcessorError.

    ``special_tokens`` are the tokenizer's, among which terminators are looked for.
    """
    reasons: list[str] = []
    tried = probes(medium=next(iter(placeholders), None))
    candidates = _candidates(template, family, placeholders, special_tokens)
    for number, (name, build) in enumerate(candidates):
        try:
            method = build()
            masks = [test(method, probe) for probe in tried]
            if isinstance(method, GenerationTags):
                _compare_tags(masks, candidates[number + 1 :], tried, test)
        except (MaskError, CookError) as error:
            reasons.append(f"{name}: {error.reason}")
            continue
        if reasons:
            logger.warning("%s: masks come from %s (%s)", template.parts.name, method.name, "; ".join(reasons))
        return method
    raise ProcessorError(
        f"{template.parts.name}: cannot tell where the assistant speaks in this chat template ({'; '.join(reasons)}):"
        " pass the right model_type, or declare a family with its Boundary"
    )


def _compare_tags(
    masks: Sequence[np.ndarray],
    others: Sequence[tuple[str, Callable[[], SpanMethod]]],
    tried: Sequence[ChatSample],
    test: SelfTest,
) -> None:
    """Tags that take in a turn's header look sound by themselves: they must agree with the next method that works."""
    for name, build in others:
        try:
            method = build()
            expected = [test(method, probe) for probe in tried]
        except (MaskError, CookError):
            continue
        if all(np.array_equal(mine, other) for mine, other in zip(masks, expected, strict=True)):
            return
        raise MaskError(f"they enclose other tokens than {name}", code="mask.tags_differ")


def _candidates(
    template: ChatTemplate, family: Family, placeholders: Placeholders, special_tokens: Sequence[str]
) -> list[tuple[str, Callable[[], SpanMethod]]]:
    thought_end = family.thinking.close
    declared = tuple(sorted({end for boundary in family.boundaries for end in boundary.ends}))
    candidates: list[tuple[str, Callable[[], SpanMethod]]] = []
    if template.has_generation_tags:
        candidates.append(
            (
                "generation tags",
                lambda: GenerationTags(
                    template=template,
                    placeholders=placeholders,
                    ends=declared or tuple(special_tokens),
                    prompt_prefixes=family.prompt_prefixes,
                    thought_end=thought_end,
                ),
            )
        )
    if family.boundaries:
        candidates.append(
            (
                "declared boundaries",
                lambda: TokenSearch(
                    name="token_search",
                    boundaries=family.boundaries,
                    prompt_prefixes=family.prompt_prefixes,
                    thought_end=thought_end,
                ),
            )
        )
    inferred = lambda: TokenSearch(  # noqa: E731 - a candidate like the two above
        name="inferred_boundaries",
        boundaries=(infer_boundary(template, family, special_tokens),),
        prompt_prefixes=family.prompt_prefixes,
        thought_end=thought_end,
    )
    return [*candidates, ("inferred boundaries", inferred)]


def probes(*, medium: MediaKind | None) -> list[ChatSample]:
    """Conversations that any chat template can render: two turns; and, where the encoder takes media, one with one."""
    turns: list[tuple[Role, str]] = [
        ("user", "probe question"),
        ("assistant", "probe answer"),
        ("user", "another one"),
        ("assistant", "yes"),
    ]
    text_only = ChatSample(key="probe", messages=tuple(_message(role, text) for role, text in turns))
    if medium is None:
        return [text_only]
    first = Message(role="user", parts=(MediaPart(kind=medium, index=0), TextPart(text="probe question")))
    return [text_only, ChatSample(key="probe", messages=(first, *text_only.messages[1:]))]


def _message(role: Role, text: str) -> Message:
    return Message(role=role, parts=(TextPart(text=text),))


def infer_boundary(template: ChatTemplate, family: Family, special_tokens: Sequence[str]) -> Boundary:
    """Read a turn's header and terminator off the rendering of a probe; raises MaskError if it has none.

    The header is what a generation prompt adds, so far as it also stands before the answer. Without one it is the
    text that stands before every answer. The terminator is the first special token behind every answer.
    """
    [probe] = probes(medium=None)
    skeleton = render_skeleton(template, probe, placeholders={})
    before, behind = _around_answers(skeleton)
    tokens = [token for token in special_tokens if all(token in text for text in behind)]
    end = min(tokens, key=lambda token: (behind[-1].index(token), -len(token)), default="")
    if not end:
        raise MaskError(f"no special token stands behind both answers ({behind!r})", code="mask.no_terminator")
    header = _prompted_header(template, probe, before[0]) or _common_ending(before)
    if not header.strip():
        raise MaskError(f"nothing common stands before both answers ({before!r})", code="mask.no_header")
    return Boundary(start=_without_thought(header, family).rstrip(" "), ends=(end,))


def _without_thought(header: str, family: Family) -> str:
    """A thought that the prompt opens is no part of the header: not every turn has it."""
    for prefix in sorted(family.prompt_prefixes, key=len, reverse=True):
        for spelling in (prefix, prefix.rstrip()):
            if header.endswith(spelling):
                return header.removesuffix(spelling)
    return header


def _around_answers(skeleton: Skeleton) -> tuple[list[str], list[str]]:
    """What the template writes before and behind each of the probe's answers."""
    before, behind = [], []
    pieces = ["", *skeleton.pieces, ""]
    for left, piece, right in zip(pieces, pieces[1:], pieces[2:], strict=False):
        if isinstance(piece, Slot) and piece.message % 2:
            before.append(left if isinstance(left, str) else "")
            behind.append(right if isinstance(right, str) else "")
    return before, behind


def _prompted_header(template: ChatTemplate, probe: ChatSample, before: str) -> str:
    question = ChatSample(key="probe", messages=probe.messages[:1])
    plain = template.render(question)
    prompted = template.render(question, add_generation_prompt=True)
    added = prompted.removeprefix(plain) if prompted.startswith(plain) else ""
    while added and added not in before:
        added = added[:-1]
    return added


def _common_ending(texts: Sequence[str]) -> str:
    first, *rest = texts
    length = len(first)
    while length and not all(text.endswith(first[-length:]) for text in rest):
        length -= 1
    return first[len(first) - length :]
