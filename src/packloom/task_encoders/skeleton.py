"""The shape of a conversation in; what the template writes around its texts and images out, found once per shape.

A template is rendered with a marker in the place of every text. What comes between the markers is the template's own
writing; where a marker stands, a text of the data will stand. A row is then proved against its skeleton: its rendering
must be the skeleton with its own texts filled in, character by character. So the origin of every character is known,
and a text that looks like a turn header is still only a text.
"""

from __future__ import annotations

import dataclasses
import itertools
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from packloom.errors import CookError, MaskError
from packloom.task_encoders.cook_parts import KINDS
from packloom.task_encoders.spellings import spellings, trimmed
from packloom.task_encoders.template import PRINTED_LIST, ChatTemplate
from packloom.task_encoders.tool_data import Leaf, ToolData, leaves_of, replace_tool_data
from packloom.task_encoders.tool_proof import prove_tools_are_written
from packloom.types import ChatSample, MediaKind, MediaPart, Message, TextPart

#: A text's marker, as it is or as JSON may escape it, and the number that stands for a number.
_MARKER = re.compile("(?:\ue000|\\\\ue000)(\\d{6})(?:\ue001|\\\\ue001)|900710943(\\d{6})")
_NUMBER = 900710943_000000

#: What the template prints for one medium of each kind that the encoder takes.
Placeholders = Mapping[MediaKind, str]


@dataclass(frozen=True, kw_only=True, slots=True)
class Slot:
    """The place of a text, a piece of reasoning, a leaf of the tool data, or an image or other medium."""

    kind: Literal["text", "reasoning", "image", "data"]
    message: int  # -1 for the data of a tool's schema
    part: int = -1  # index into the message's parts; -1 for reasoning and tool data
    leaf: int = -1  # the number of a leaf of the tool data
    owned: bool = False  # a leaf that must stand in its message's turn
    medium: int = -1  # index into the sample's media


@dataclass(frozen=True, kw_only=True, slots=True)
class Skeleton:
    """A rendering with slots: strings are the template's own writing."""

    pieces: tuple[str | Slot, ...]
    suffix: str = ""  # written by the encoder after the rendering, e.g. a stop token that the template leaves out

    def starts(self, texts: Sequence[str]) -> list[int]:
        """Where each piece starts once the slots are filled."""
        position, starts = 0, []
        for text in texts:
            starts.append(position)
            position += len(text)
        return starts


def render_skeleton(
    template: ChatTemplate, chat: ChatSample, *, placeholders: Placeholders, suffix: str = ""
) -> Skeleton:
    """Render this conversation's shape.

    Raises MaskError if the template drops or repeats a text or drops tool data, CookError if it drops an image or
    refuses the shape.
    """
    marked, slots = mark(chat)
    data, slots = _mark_data(marked, slots)
    media = {
        kind: [
            Slot(kind="image", message=m, part=p, medium=part.index)
            for m, message in enumerate(chat.messages)
            for p, part in enumerate(message.parts)
            if isinstance(part, MediaPart) and part.kind == kind
        ]
        for kind in KINDS
    }
    pieces: list[str | Slot] = []
    unseen = {kind: iter(slots_of_kind) for kind, slots_of_kind in media.items()}
    rendered, position = template.render(data.chat), 0
    for found in _MARKER.finditer(rendered):
        pieces += _split_at_media(rendered[position : found.start()], placeholders, unseen)
        pieces.append(slots[int(found[1] or found[2])])
        position = found.end()
    pieces += _split_at_media(rendered[position:], placeholders, unseen)
    _check_slots(chat, slots, pieces)
    _check_media(media, pieces)
    written = {piece.leaf for piece in pieces if isinstance(piece, Slot) and piece.kind == "data"}
    owned = prove_tools_are_written(template, data, written)
    return Skeleton(pieces=tuple(_own(piece, owned) for piece in pieces if piece != ""), suffix=suffix)


def _own(piece: str | Slot, owned: frozenset[int]) -> str | Slot:
    is_owned = isinstance(piece, Slot) and piece.leaf in owned
    return dataclasses.replace(piece, owned=True) if is_owned and isinstance(piece, Slot) else piece


def _split_at_media(
    text: str, placeholders: Placeholders, media: Mapping[MediaKind, Iterator[Slot]]
) -> list[str | Slot]:
    if not placeholders:
        return [text]
    kinds = {placeholder: kind for kind, placeholder in placeholders.items()}
    pieces: list[str | Slot] = []
    for number, piece in enumerate(re.split(f"({'|'.join(map(re.escape, kinds))})", text)):
        pieces.append(next(media[kinds[piece]], _surplus(kinds[piece])) if number % 2 else piece)
    return pieces


def _surplus(kind: MediaKind) -> Slot:
    """What stands where the template writes more than there are; refused by ``_check_media``."""
    return Slot(kind="image", message=-1, medium=-1 - KINDS.index(kind))


def mark(chat: ChatSample) -> tuple[ChatSample, list[Slot]]:
    """The conversation with a numbered marker for every text that has content; tool data stay."""
    slots: list[Slot] = []

    def marked(text: str, slot: Slot) -> str:
        if not text.strip():
            return text
        slots.append(slot)
        return _marker(len(slots) - 1)

    messages = []
    for m, message in enumerate(chat.messages):
        reasoning = message.reasoning
        if reasoning is not None:
            reasoning = marked(reasoning, Slot(kind="reasoning", message=m))
        parts = tuple(
            TextPart(text=marked(part.text, Slot(kind="text", message=m, part=p)))
            if isinstance(part, TextPart) and not part.read
            else part
            for p, part in enumerate(message.parts)
        )
        messages.append(dataclasses.replace(message, parts=parts, reasoning=reasoning))
    return dataclasses.replace(chat, messages=tuple(messages)), slots


def _mark_data(chat: ChatSample, slots: Sequence[Slot]) -> tuple[ToolData, list[Slot]]:
    """The same for tool data: a marker for every text and key, a number of our own for every value of an argument."""
    first = len(slots)

    def marker(number: int, leaf: Leaf) -> str | int:
        return _marker(first + number) if isinstance(leaf.value, str) else _NUMBER + first + number

    data = replace_tool_data(chat, marker)
    leaves = (Slot(kind="data", message=leaf.message, leaf=n) for n, leaf in enumerate(data.leaves))
    return data, [*slots, *leaves]


def _marker(number: int) -> str:
    return f"\ue000{number:06d}\ue001"


def _check_slots(chat: ChatSample, slots: Sequence[Slot], pieces: Sequence[str | Slot]) -> None:
    """Each text once; reasoning may be left out, for templates drop that of earlier turns."""
    for before, piece in itertools.pairwise(pieces):
        is_text = isinstance(piece, Slot) and piece.kind == "text"
        if is_text and isinstance(before, str) and re.search(PRINTED_LIST + r"\Z", before):
            raise MaskError("the chat template prints content as a list", code="template.list_printed")
    counts = Counter(piece for piece in pieces if isinstance(piece, Slot))
    for slot in slots:
        count = counts[slot]
        if slot.kind == "data":  # see tool_proof
            continue
        if count == 1 or (count == 0 and slot.kind == "reasoning"):
            continue
        message = chat.messages[slot.message]
        does = "drops" if count == 0 else f"writes {count} times"
        raise MaskError(
            f"the chat template {does} the text {_excerpt(message, slot)!r} of message {slot.message} ({message.role})",
            code="template.text_lost",
        )
    reasoning = [slot for slot in slots if slot.kind == "reasoning"]
    if reasoning and not any(counts[slot] for slot in reasoning):
        raise MaskError(
            "the chat template drops the reasoning of this conversation",
            code="template.reasoning_lost",
            hint="set thinking='drop' if that is meant, or use a template that renders reasoning_content",
        )


def _check_media(media: Mapping[MediaKind, Sequence[Slot]], pieces: Sequence[str | Slot]) -> None:
    rendered = Counter(piece for piece in pieces if isinstance(piece, Slot) and piece.kind == "image")
    for kind, slots in media.items():
        count = sum(rendered[slot] for slot in (*slots, _surplus(kind)))
        if count != len(slots):
            raise CookError(
                f"the chat template renders {count} {kind} placeholders for {len(slots)} {kind}s",
                code=f"template.{kind}_count",
                hint=f"move the {kind}s into user turns, where the template shows them",
            )


def _excerpt(message: Message, slot: Slot, limit: int = 60) -> str:
    part = message.parts[slot.part]
    text = part.text.strip() if isinstance(part, TextPart) else ""
    return text if len(text) <= limit else f"{text[: limit - 1]}…"


def fill(skeleton: Skeleton, chat: ChatSample, rendered: str, placeholders: Placeholders) -> list[str]:
    """The text of every piece in ``rendered``; the texts may have been trimmed by the template, nothing more.

    Tool data and tool results may also be escaped as in JSON. Raises MaskError where the rendering is not the skeleton
    with these texts in it.
    """
    verbatim = _verbatim(skeleton, chat, placeholders)
    if verbatim and "".join(verbatim) == rendered:
        return verbatim
    texts: list[str] = []
    position = 0
    leaves: tuple[Leaf, ...] | None = None
    for index, piece in enumerate(skeleton.pieces):
        if isinstance(piece, str):
            found = piece if rendered.startswith(piece, position) else None
        else:
            following = skeleton.pieces[index + 1] if index + 1 < len(skeleton.pieces) else ""
            literal = following if isinstance(following, str) else ""
            if piece.kind == "data":
                leaves = leaves_of(chat) if leaves is None else leaves
                candidates = spellings(leaves[piece.leaf].value, capitals=piece.message < 0)
            elif piece.kind == "image":
                candidates = iter([_placeholder(chat, piece, placeholders)])
            else:
                candidates = _as_written(chat, piece)
            found = next((text for text in candidates if rendered.startswith(text + literal, position)), None)
        if found is None:
            raise _rewritten(chat, piece)
        texts.append(found)
        position += len(found)
    if position != len(rendered):
        raise _rewritten(chat, skeleton.pieces[-1])
    return texts


def _verbatim(skeleton: Skeleton, chat: ChatSample, placeholders: Placeholders) -> list[str]:
    """The pieces of a rendering that changes no text; none where there are tool data, which have several spellings."""
    texts: list[str] = []
    for piece in skeleton.pieces:
        if isinstance(piece, str):
            texts.append(piece)
        elif piece.kind == "data":
            return []
        elif piece.kind == "reasoning":
            texts.append(chat.messages[piece.message].reasoning or "")
        else:
            part = chat.messages[piece.message].parts[piece.part]
            texts.append(part.text if isinstance(part, TextPart) else placeholders.get(part.kind, ""))
    return texts


def _placeholder(chat: ChatSample, slot: Slot, placeholders: Placeholders) -> str:
    part = chat.messages[slot.message].parts[slot.part]
    return placeholders.get(part.kind, "") if isinstance(part, MediaPart) else ""


def _as_written(chat: ChatSample, slot: Slot) -> Iterator[str]:
    message = chat.messages[slot.message]
    if slot.kind == "reasoning":
        return trimmed(message.reasoning or "")
    part = message.parts[slot.part]
    text = part.text if isinstance(part, TextPart) else ""
    return spellings(text) if message.role == "tool" else trimmed(text)


def _rewritten(chat: ChatSample, piece: str | Slot) -> MaskError:
    where = ""
    if isinstance(piece, Slot) and piece.message >= 0:
        where = f" of message {piece.message} ({chat.messages[piece.message].role})"
    what = "tool data" if isinstance(piece, Slot) and piece.kind == "data" else "text"
    return MaskError(
        f"the chat template rewrites the {what}{where} or what follows it: it treats something in it specially",
        code="template.text_rewritten",
        hint="look for thinking or tool marks in the text",
    )
