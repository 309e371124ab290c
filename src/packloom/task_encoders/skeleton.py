"""The shape of a conversation in; what the template writes around its texts and images out, found once per shape.

A template is rendered with a marker in the place of every text. What comes between the markers is the template's own
writing; where a marker stands, a text of the data will stand. A row is then proved against its skeleton: its rendering
must be the skeleton with its own texts filled in, character by character. So the origin of every character is known,
and a text that looks like a turn header is still only a text.
"""

from __future__ import annotations

import dataclasses
import json
import re
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from packloom.errors import CookError, MaskError
from packloom.task_encoders.template import ChatTemplate
from packloom.task_encoders.tool_proof import prove_tools_are_written
from packloom.types import ChatSample, MediaPart, Message, TextPart

_MARKER = re.compile("\ue000(\\d+)\ue001")


@dataclass(frozen=True, kw_only=True, slots=True)
class Slot:
    """The place of a text, a piece of reasoning or an image of the data."""

    kind: Literal["text", "reasoning", "image"]
    message: int
    part: int = -1  # index into the message's parts; -1 for reasoning


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


def render_skeleton(template: ChatTemplate, chat: ChatSample, *, placeholder: str | None, suffix: str = "") -> Skeleton:
    """Render this conversation's shape. ``placeholder`` is what the template prints for one image.

    Raises MaskError if the template drops or repeats a text, CookError if it drops an image or refuses the shape.
    """
    prove_tools_are_written(template, chat)
    marked, slots = mark(chat)
    images = [
        Slot(kind="image", message=m, part=p)
        for m, message in enumerate(chat.messages)
        for p, part in enumerate(message.parts)
        if isinstance(part, MediaPart)
    ]
    pieces: list[str | Slot] = []
    for index, piece in enumerate(_MARKER.split(template.render(marked))):
        pieces += [slots[int(piece)]] if index % 2 else _split_at_images(piece, placeholder, images, pieces)
    _check_slots(chat, slots, pieces)
    _check_images(images, pieces)
    return Skeleton(pieces=tuple(piece for piece in pieces if piece != ""), suffix=suffix)


def _split_at_images(
    text: str, placeholder: str | None, images: Sequence[Slot], before: Sequence[str | Slot]
) -> list[str | Slot]:
    if placeholder is None:
        return [text]
    first, *rest = text.split(placeholder)
    used = sum(isinstance(piece, Slot) and piece.kind == "image" for piece in before)
    pieces: list[str | Slot] = [first]
    for number, following in enumerate(rest, start=used):
        surplus = Slot(kind="image", message=-1)  # refused by _check_images
        pieces += [images[number] if number < len(images) else surplus, following]
    return pieces


def shape_of(chat: ChatSample) -> Hashable:
    """What a template may branch on: roles, kinds of parts, emptiness of texts; tool data whole."""
    return (
        _data(chat.tools),
        tuple(
            (
                message.role,
                tuple(_kind(part.text) if isinstance(part, TextPart) else part.kind for part in message.parts),
                None if message.reasoning is None else _kind(message.reasoning),
                _data(message.tool_calls),
                message.name,
                message.tool_call_id,
            )
            for message in chat.messages
        ),
    )


def _data(items: Sequence[Mapping[str, Any]]) -> str:
    return json.dumps([dict(item) for item in items], sort_keys=True) if items else ""


def _kind(text: str) -> str:
    """A text with content is a marker; one of white space alone stands for itself."""
    return "text" if text.strip() else f"blank:{text}"


def mark(chat: ChatSample) -> tuple[ChatSample, list[Slot]]:
    """The conversation with a numbered marker for every text that has content."""
    slots: list[Slot] = []

    def marked(text: str, slot: Slot) -> str:
        if not text.strip():
            return text
        slots.append(slot)
        return f"\ue000{len(slots) - 1}\ue001"

    messages = []
    for m, message in enumerate(chat.messages):
        reasoning = message.reasoning
        if reasoning is not None:
            reasoning = marked(reasoning, Slot(kind="reasoning", message=m))
        parts = tuple(
            TextPart(text=marked(part.text, Slot(kind="text", message=m, part=p)))
            if isinstance(part, TextPart)
            else part
            for p, part in enumerate(message.parts)
        )
        messages.append(dataclasses.replace(message, parts=parts, reasoning=reasoning))
    return dataclasses.replace(chat, messages=tuple(messages)), slots


def _check_slots(chat: ChatSample, slots: Sequence[Slot], pieces: Sequence[str | Slot]) -> None:
    """Each text once; reasoning may be left out, for templates drop that of earlier turns."""
    if any(isinstance(piece, str) and "[{'type': 'text'" in piece for piece in pieces):
        raise MaskError("the chat template prints content as a Python list", code="template.list_printed")
    for slot in slots:
        count = sum(piece == slot for piece in pieces)
        if count == 1 or (count == 0 and slot.kind == "reasoning"):
            continue
        message = chat.messages[slot.message]
        does = "drops" if count == 0 else f"writes {count} times"
        raise MaskError(
            f"the chat template {does} the text {_excerpt(message, slot)!r} of message {slot.message} ({message.role})",
            code="template.text_lost",
        )
    reasoning = [slot for slot in slots if slot.kind == "reasoning"]
    if reasoning and not any(slot in pieces for slot in reasoning):
        raise MaskError(
            "the chat template drops the reasoning of this conversation",
            code="template.reasoning_lost",
            hint="set thinking='drop' if that is meant, or use a template that renders reasoning_content",
        )


def _check_images(images: Sequence[Slot], pieces: Sequence[str | Slot]) -> None:
    rendered = sum(isinstance(piece, Slot) and piece.kind == "image" for piece in pieces)
    if rendered != len(images):
        raise CookError(
            f"the chat template renders {rendered} image placeholders for {len(images)} images",
            code="template.image_count",
            hint="move the images into user turns, where the template shows them",
        )


def _excerpt(message: Message, slot: Slot, limit: int = 60) -> str:
    part = message.parts[slot.part]
    text = part.text.strip() if isinstance(part, TextPart) else ""
    return text if len(text) <= limit else f"{text[: limit - 1]}…"


def fill(skeleton: Skeleton, chat: ChatSample, rendered: str, placeholder: str | None) -> list[str]:
    """The text of every piece in ``rendered``; the texts may have been trimmed by the template, nothing more.

    Raises MaskError where the rendering is not the skeleton with these texts in it.
    """
    texts: list[str] = []
    position = 0
    for index, piece in enumerate(skeleton.pieces):
        if isinstance(piece, str):
            found = piece if rendered.startswith(piece, position) else None
        else:
            following = skeleton.pieces[index + 1] if index + 1 < len(skeleton.pieces) else ""
            literal = following if isinstance(following, str) else ""
            candidates: Iterable[str] = (
                [placeholder or ""] if piece.kind == "image" else _trimmed(_text_of(chat, piece))
            )
            found = next((text for text in candidates if rendered.startswith(text + literal, position)), None)
        if found is None:
            raise _rewritten(chat, piece)
        texts.append(found)
        position += len(found)
    if position != len(rendered):
        raise _rewritten(chat, skeleton.pieces[-1])
    return texts


def _text_of(chat: ChatSample, slot: Slot) -> str:
    message = chat.messages[slot.message]
    if slot.kind == "reasoning":
        return message.reasoning or ""
    part = message.parts[slot.part]
    return part.text if isinstance(part, TextPart) else ""


def _trimmed(text: str) -> Iterator[str]:
    """The text itself first: few templates trim."""
    yield text
    yield from (text.strip(), text.rstrip(), text.lstrip(), text.strip("\n"), text.lstrip("\n"), text.rstrip("\n"))


def _rewritten(chat: ChatSample, piece: str | Slot) -> MaskError:
    where = ""
    if isinstance(piece, Slot) and piece.message >= 0:
        where = f" of message {piece.message} ({chat.messages[piece.message].role})"
    return MaskError(
        f"the chat template rewrites the text{where} or what follows it: it treats something in it specially",
        code="template.text_rewritten",
        hint="look for thinking or tool marks in the text",
    )
