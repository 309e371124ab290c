"""A raw sample's media parts and the references to them enter, media bound to their places leave."""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from packloom.errors import CookError
from packloom.task_encoders.cook_messages import Turn
from packloom.task_encoders.cook_parts import KINDS, MediaRef, media_ref
from packloom.types import Media, MediaFinder, MediaKind, MediaPart, Message, Part, RawSample

_EXTENSIONS: Mapping[MediaKind, str] = {
    "image": "jpg jpeg jpe jfif png apng webp gif bmp dib tif tiff avif heic heif jp2 jxl ppm pgm pbm pnm tga",
    "video": "mp4 m4v mov avi mkv webm mpg mpeg flv wmv 3gp",
    "audio": "wav mp3 flac ogg oga opus m4a aac",
}
_KIND_OF = {extension: kind for kind, extensions in _EXTENSIONS.items() for extension in extensions.split()}
_FIELDS: Mapping[MediaKind, tuple[str, str]] = {kind: (f"{kind}s", kind) for kind in KINDS}
_DATA_URI = re.compile(r"data:(\w+)/([\w.+-]+);base64,", re.IGNORECASE)


@dataclass(frozen=True, kw_only=True, slots=True)
class MediaShelf:
    """The parts of one raw sample, found by name; names are compared in lower case and never reach the file system.

    A name that begins with the alias of an aux dataset (``media/000123.0.jpg``) means that dataset and nothing else.
    """

    key: str
    parts: Mapping[str, Any]  # lower-cased part name → what the sample holds, all but json and txt
    files: Mapping[MediaKind, list[str]]  # kind → its parts in natural order: 2.jpg before 10.jpg; none: no entry
    aux: MediaFinder | None = None

    @classmethod
    def of(cls, key: str, raw: RawSample) -> MediaShelf:
        """Raises CookError if two names differ by case only."""
        parts: dict[str, Any] = {}
        for name, value in raw.items():
            lowered = str(name).lower()
            if lowered.startswith("__") or lowered in ("json", "txt"):
                continue
            if lowered in parts:
                raise CookError(f"two parts are both named {lowered!r} in lower case", code="cook.media_name")
            parts[lowered] = value
        return cls(key=key, parts=parts, files=_by_kind(parts), aux=raw.get("__aux__"))

    def names(self, kind: MediaKind) -> list[str]:
        """The files of a kind in natural order."""
        return self.files.get(kind, [])

    def without(self, names: Iterable[str]) -> MediaShelf:
        """The shelf without these parts."""
        gone = set(names)
        left = {name: value for name, value in self.parts.items() if name not in gone}
        return replace(self, parts=left, files=_by_kind(left)) if gone else self

    def find(self, name: str) -> str | None:
        """The part that ``name`` stands for: a part's name, or a path to it, or a path to ``<key>.<part>``."""
        base = _last_piece(name.split("?")[0] if "://" in name else name)
        rest = base.removeprefix(_last_piece(self.key) + ".")
        return next((candidate for candidate in (base, rest) if candidate in self.parts), None)

    def load(self, name: str, kind: MediaKind) -> Media:
        """The medium of a part. Raises CookError unless it is bytes and not known to be of another kind."""
        value = self.parts[name]
        if not isinstance(value, (bytes, bytearray, memoryview)):
            reason = f"part {name!r} is {type(value).__name__}, not compressed bytes"
            raise CookError(reason, code="cook.media_bytes", hint="read shards without decoding them")
        _check_kind(name, kind)
        return Media(kind=kind, name=name, data=bytes(value))

    def is_aux(self, name: str) -> bool:
        """Whether the name is one of an aux dataset."""
        return self.aux is not None and self.aux.claims(name)


def _by_kind(names: Iterable[str]) -> dict[MediaKind, list[str]]:
    found: dict[MediaKind, list[str]] = {}
    for name in names:
        if kind := _kind_of(name):
            found.setdefault(kind, []).append(name)
    for files in found.values():
        if len(files) > 1:
            files.sort(key=_natural)
    return found


def _check_kind(name: str, kind: MediaKind) -> None:
    if (known := _kind_of(name.lower())) not in (kind, None):
        raise CookError(f"part {name!r} stands where a {kind} is needed, but is {known}", code="cook.media_name")


def listed_media(row: Mapping[str, Any], kind: MediaKind) -> list[MediaRef]:
    """What a row lists under ``image`` or ``images``: a name, or a list of names."""
    fields = [name for name in _FIELDS[kind] if row.get(name)]
    if len(fields) > 1 and row[fields[0]] not in (row[fields[1]], [row[fields[1]]]):
        raise CookError(f"the row has different values under {' and '.join(fields)}", code="cook.media_list")
    if not fields:
        return []
    value = row[fields[0]]
    items = value if isinstance(value, list) else [value]
    if any(item is None for item in items):
        raise CookError(f"{fields[0]} of the row holds null: {value!r:.80}", code="cook.media_list")
    return [media_ref(item, kind, f"{fields[0]} of the row") for item in items]


def bind_media(
    turns: Sequence[Turn], shelf: MediaShelf, listed: Mapping[MediaKind, Sequence[MediaRef]]
) -> tuple[tuple[Message, ...], tuple[Media, ...]]:
    """Messages whose parts count into the media, in the order of their places. Every file is used, or CookError."""
    refs = [part for turn in turns for part in turn.parts if isinstance(part, MediaRef)]
    clips = {id(ref): _load_frames(ref, shelf) for ref in refs if ref.frames}
    rest = shelf.without(frame.name for clip in clips.values() for frame in clip.frames)
    placed: dict[MediaKind, list[MediaRef]] = {kind: [] for kind in KINDS}
    for ref in refs:
        if not ref.frames:
            placed[ref.kind].append(ref)
    bound = {
        kind: iter(_bind_kind(kind, places, rest, listed))
        for kind, places in placed.items()
        if places or kind in rest.files
    }
    if not clips:  # whose frames may be listed as images
        _refuse_unplaced(refs, listed)
    media: list[Media] = []
    messages = []
    for turn in turns:
        parts: list[Part] = []
        for part in turn.parts:
            if isinstance(part, MediaRef):
                parts.append(MediaPart(kind=part.kind, index=len(media)))
                media.append(clips[id(part)] if part.frames else next(bound[part.kind]))
            else:
                parts.append(part)
        messages.append(_message(turn, tuple(parts)))
    return tuple(messages), tuple(media)


def _refuse_unplaced(refs: Sequence[MediaRef], listed: Mapping[MediaKind, Sequence[MediaRef]]) -> None:
    """Media that a row lists and no message places would be lost, wherever their files are."""
    for kind, items in listed.items():
        if items and all(ref.kind != kind for ref in refs):
            raise CookError(
                f"0 {kind} places in the messages, {len(items)} listed in the row",
                code=f"cook.{kind}_count",
                hint="add the place, or drop it from the list",
            )


def _load_frames(ref: MediaRef, shelf: MediaShelf) -> Media:
    """A video of frames that are parts of the sample; raises CookError for one that is not."""
    frames = []
    for name in ref.frames:
        part = shelf.find(name)
        if part is None:
            hint = "frames of a video must be parts of its own sample"
            raise CookError(f"no part of the sample is named {name!r:.120}, a frame", code="cook.media_name", hint=hint)
        frames.append(shelf.load(part, "image"))
    return Media(kind="video", name=ref.frames[0], data=b"", frames=tuple(frames), fps=ref.fps)


def _message(turn: Turn, parts: tuple[Part, ...]) -> Message:
    return Message(
        role=turn.role,
        parts=parts,
        tool_calls=turn.tool_calls,
        reasoning=turn.reasoning,
        loss=turn.loss,
        name=turn.name,
        tool_call_id=turn.tool_call_id,
    )


def _bind_kind(
    kind: MediaKind, refs: list[MediaRef], shelf: MediaShelf, listed: Mapping[MediaKind, Sequence[MediaRef]]
) -> list[Media]:
    """One medium per place. A part named twice is there twice; a place without a name takes the next file."""
    files = shelf.names(kind)
    named = [ref.name for ref in refs if ref.name is not None]
    counts = partial(_counts, kind, len(refs), files)
    if named and len(named) < len(refs):
        reason = f"some {kind} parts name their file and some do not: {counts()}"
        raise CookError(reason, code="cook.part", hint="name all or none")
    if not named and refs:
        if listed.get(kind):
            named = _resolve_list([str(ref.name) for ref in listed[kind]], files, shelf, kind)
            counts = partial(counts, len(named))
        else:
            named = files
        if len(named) != len(refs):
            raise CookError(counts(), code=f"cook.{kind}_count", hint="each place needs its own file, in order")
    media = [_fetch(name, kind, shelf, counts, equal=len(refs) == len(files)) for name in named]
    unused = set(files) - {medium.name for medium in media}
    if unused:
        reason = f"{counts()}: no place refers to {', '.join(sorted(unused, key=_natural))}"
        raise CookError(reason, code=f"cook.{kind}_count", hint="add the place or drop the file")
    return media


def _resolve_list(names: list[str], files: list[str], shelf: MediaShelf, kind: MediaKind) -> list[str]:
    """A row's list as names of files. Names from before the row was sharded stand for its numbered files in order."""
    found = [name for name in names if _DATA_URI.match(name) or shelf.is_aux(name) or shelf.find(name)]
    numbered = len(files) == 1 or all(name.split(".")[0].isdigit() for name in files)
    if found or len(names) != len(files) or not numbered:
        return names
    return files


def _fetch(name: str, kind: MediaKind, shelf: MediaShelf, counts: Callable[[], str], *, equal: bool) -> Media:
    if match := _DATA_URI.match(name):
        return _decode_uri(name, match, kind)
    if shelf.aux is not None and shelf.aux.claims(name):
        _check_kind(name, kind)
        return shelf.aux.find(name, kind)
    part = shelf.find(name)
    if part is None:
        hint = "urls are not fetched: store the bytes as a part" if "://" in name else "store it as a part"
        code = "cook.media_name" if equal else f"cook.{kind}_count"
        raise CookError(f"no part of the sample is named {name!r:.120}: {counts()}", code=code, hint=hint)
    return shelf.load(part, kind)


def _decode_uri(uri: str, match: re.Match[str], kind: MediaKind) -> Media:
    """The bytes of a base64 data URI."""
    if match[1].lower() != kind:
        raise CookError(f"a data URI of type {match[1]} stands where a {kind} is needed", code="cook.media_name")
    try:
        data = base64.b64decode(uri[match.end() :], validate=True)
    except (binascii.Error, ValueError) as error:
        raise CookError(f"a data URI is not base64: {error}", code="cook.media_bytes") from error
    return Media(kind=kind, name=match[0].split(";")[0], data=data)


def _kind_of(name: str) -> MediaKind | None:
    return _KIND_OF.get(name.rpartition(".")[2])


def _natural(name: str) -> tuple[list[tuple[int, str]], str]:
    """A sort key that compares runs of digits as numbers, however long."""
    pieces = re.split(r"([0-9]+)", name)
    pieces[1::2] = [digits.lstrip("0") for digits in pieces[1::2]]
    return [(len(piece) * (place % 2), piece) for place, piece in enumerate(pieces)], name


def _last_piece(path: str) -> str:
    return path.replace("\\", "/").rpartition("/")[2].lower()


def _counts(kind: MediaKind, num_places: int, files: Sequence[str], num_listed: int | None = None) -> str:
    """For an error: how many of a kind there are of each."""
    text = f"{_count(num_places, kind, 'place')} in the messages, {_count(len(files), kind, 'file')} in the sample"
    text += f" ({', '.join(files)})" if files else ""
    return text if num_listed is None else f"{text}, {num_listed} listed in the row"


def _count(number: int, kind: MediaKind, noun: str) -> str:
    return f"{number} {kind} {noun}{'' if number == 1 else 's'}"
