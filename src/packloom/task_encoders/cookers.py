"""A raw sample in any known row schema enters, a ChatSample with its media bound to their places leaves.

Schemas of the json part, by the first field that is there: ``messages`` (OpenAI, TRL, LLaMA-Factory), ``conversations``
(LLaVA, ShareGPT), ``question`` with ``answer`` or ``answers`` (VQA), ``caption``; else a ``txt`` part is the caption.

Error codes: cook.key · cook.json · cook.schema · cook.messages · cook.role · cook.content · cook.part · cook.text ·
cook.tools · cook.reasoning · cook.loss · cook.system · cook.answer · cook.media_list · cook.media_bytes ·
cook.option (a medium with settings of its own) · cook.media_name (a name that no part has) · cook.image_count,
cook.video_count, cook.audio_count (places ≠ files).
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NoReturn

from packloom.errors import CookError
from packloom.task_encoders.cook_media import MediaShelf, bind_media, listed_media
from packloom.task_encoders.cook_messages import Turn, read_tools, read_turns
from packloom.task_encoders.cook_parts import KINDS, MediaRef, check_text, split_markers
from packloom.types import ChatSample, MediaKind, RawSample, TextPart

#: The media that a row lists beside its messages, e.g. under ``images``.
Listed = Mapping[MediaKind, list[MediaRef]]

#: What an encoder calls on every raw sample; a user's own may replace ``cook``. Bad samples raise CookError.
Cooker = Callable[[RawSample], ChatSample]


def cook(raw: RawSample) -> ChatSample:
    """Find the schema of a raw sample and build its conversation. Reads nothing but ``raw`` and does not change it.

    Every medium has exactly one outcome: it stands where the messages place it, or the sample is refused. Media files
    are the parts with a known media extension, ordered naturally (``2.jpg`` before ``10.jpg``). In typed parts
    (``{"type": "image"}``) the text is literal. In string content ``<image>`` is a place only in user turns, and only
    of ``conversations`` rows, of questions, and of ``messages`` rows that list ``images``; it is literal everywhere
    else. A question needs no media, a caption does.

    Raises CookError with the sample's key and one of the codes above.
    """
    key = raw.get("__key__")
    if not isinstance(key, str) or not key:
        raise CookError(f"the sample needs a non-empty string under '__key__', got {key!r}", code="cook.key")
    try:
        shelf = MediaShelf.of(key, raw)
        row = _read_json(raw)
        turns, listed = _read_row(raw, row, shelf)
        messages, media = bind_media(turns, shelf, listed)
        return ChatSample(
            key=key,
            messages=messages,
            media=media,
            tools=read_tools(row.get("tools")),
            source=str(raw.get("__url__", "")),
        )
    except CookError as error:
        raise error.with_key(key) from error
    except RecursionError as error:
        raise CookError("the json part is nested too deeply", key=key, code="cook.json") from error


def _read_json(raw: RawSample) -> Mapping[str, Any]:
    """The row without its None values; {} if there is no json part."""
    value = raw.get("json")
    if value is None:
        return {}
    if not isinstance(value, Mapping):
        try:
            value = json.loads(_decode(value, "json"))
        except ValueError as error:
            raise CookError(f"the json part is not JSON: {error}", code="cook.json") from error
    if not isinstance(value, Mapping):
        raise CookError(f"the json part holds {type(value).__name__}, not an object", code="cook.json")
    return {name: item for name, item in value.items() if item is not None}


def _decode(value: object, part: str) -> str:
    if isinstance(value, str):
        return value
    if not isinstance(value, (bytes, bytearray, memoryview)):
        raise CookError(f"the {part} part is {type(value).__name__}, not bytes", code="cook.json")
    try:
        return bytes(value).decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise CookError(f"the {part} part is not UTF-8: {error}", code="cook.json") from error


def _read_row(raw: RawSample, row: Mapping[str, Any], shelf: MediaShelf) -> tuple[list[Turn], Listed]:
    """The turns, whose media are still references, and the media that the row lists beside them."""
    listed = {kind: listed_media(row, kind) for kind in KINDS}
    fields = [field for field in ("messages", "conversations") if field in row]
    if len(fields) == 2 and not all(row[field] for field in fields):
        fields = [field for field in fields if row[field]] or fields[:1]
    if len(fields) == 2:
        reason = "the row has both messages and conversations"
        raise CookError(reason, code="cook.schema", hint="drop one, or pass a cooker that knows which to train on")
    if fields:
        return _with_system(row, read_turns(row[fields[0]], _marker_kinds(fields[0], shelf, listed))), listed
    if "question" in row:
        return _with_system(row, _read_vqa(row, shelf, listed)), listed
    if raw.get("txt") is not None or "caption" in row:
        caption = _decode(raw["txt"], "txt").strip() if raw.get("txt") is not None else row["caption"]
        if not check_text(caption, "caption"):
            raise CookError("the caption is empty", code="cook.text")
        return _pair(_all_media(shelf, listed), caption), listed
    found = ", ".join(map(repr, row)) or "nothing"
    parts = ", ".join(sorted(str(name) for name in raw if not str(name).startswith("__"))) or "none"
    wanted = "messages, conversations, question or caption, and there is no txt part"
    reason = f"the json part has none of {wanted}; it has {found}, and the parts are {parts}"
    raise CookError(reason, code="cook.schema", hint="pass a cooker that reads this layout")


def _marker_kinds(field: str, shelf: MediaShelf, listed: Listed) -> set[MediaKind]:
    """The kinds of media that ``<kind>`` in a user's string content stands for."""
    kinds = {kind for kind in KINDS if listed[kind]}
    if field == "conversations":  # <video> and <audio> are HTML too, so they count only beside such a file
        kinds.add("image")
        kinds.update(kind for kind in KINDS if shelf.names(kind))
    return kinds


def _with_system(row: Mapping[str, Any], turns: list[Turn]) -> list[Turn]:
    """A row-level system text goes in front."""
    system = check_text(row.get("system", ""), "system")
    if not system:
        return turns
    if turns[0].role == "system":
        raise CookError("there is a system text beside the messages and one among them", code="cook.system")
    return [Turn(role="system", parts=(TextPart(text=system),)), *turns]


def _read_vqa(row: Mapping[str, Any], shelf: MediaShelf, listed: Listed) -> list[Turn]:
    """One question with its media in front, unless the question says itself where they stand; or one without media."""
    question = check_text(row["question"], "question")
    media = _media_refs(shelf, listed)
    placed = split_markers(question, {"image", *(ref.kind for ref in media)})
    if not media and not question:
        raise CookError("the question is empty, and there are no media", code="cook.text")
    if not media and shelf.parts:  # a medium of a kind that is not known would be lost without a word
        _refuse_no_media(f" (of no known kind: {', '.join(sorted(shelf.parts))})")
    if any(isinstance(part, MediaRef) for part in placed):
        return _pair(placed, _answer(row))
    return _pair([*media, *placed], _answer(row))


def _answer(row: Mapping[str, Any]) -> str:
    """``answer``, else the answer that most annotators gave; among equals the first."""
    answer = row.get("answer")
    if answer is None:
        answers = row.get("answers")
        if not isinstance(answers, list) or not answers:
            raise CookError("a VQA row needs answer, or a non-empty list answers", code="cook.answer")
        texts = [item.get("answer") if isinstance(item, Mapping) else item for item in answers]
        answer = Counter(check_text(text, "answers") for text in texts).most_common(1)[0][0]
    text = check_text(answer, "answer")
    if not text:
        raise CookError("the answer is empty", code="cook.answer")
    return text


def _all_media(shelf: MediaShelf, listed: Listed) -> list[MediaRef]:
    """The places of a row that is about its media and so must have one."""
    refs = _media_refs(shelf, listed)
    if not refs:
        _refuse_no_media("")
    return refs


def _media_refs(shelf: MediaShelf, listed: Listed) -> list[MediaRef]:
    """One place per medium."""
    return [MediaRef(kind=kind) for kind in KINDS for _ in listed[kind] or shelf.names(kind)]


def _refuse_no_media(which: str) -> NoReturn:
    reason = f"the row has 1 implied place for an image, but there are 0 image files in the sample{which}"
    raise CookError(reason, code="cook.image_count", hint="store the image beside it, as part 'jpg' or '0.jpg'")


def _pair(prompt: Sequence[TextPart | MediaRef], answer: str) -> list[Turn]:
    return [Turn(role="user", parts=tuple(prompt)), Turn(role="assistant", parts=(TextPart(text=answer),))]
