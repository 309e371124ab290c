"""One part of a message enters, in any of its dialects; a text, or the place of a medium, leaves."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any, get_args

from packloom.errors import CookError
from packloom.types import MediaKind, TextPart

KINDS: tuple[MediaKind, ...] = get_args(MediaKind)
#: part type, and the key of its payload → kind of medium
_MEDIA_TYPES: Mapping[str, MediaKind] = {name: kind for kind in KINDS for name in (kind, f"{kind}_url")}
#: How many of the listed frames are shown in a second, as qwen-vl-utils and others call it.
_RATE_KEYS = ("fps", "sample_fps")
#: What qwen-vl-utils and others read beside a medium to choose its frames and its size.
_OPTIONS = (
    *_RATE_KEYS,
    *("nframes", "min_frames", "max_frames", "video_start", "video_end"),
    *("min_pixels", "max_pixels", "total_pixels", "resized_height", "resized_width"),
)
#: Frames in a second that somebody may have taken: from one in a day on.
_RATES = (1e-5, 1e6)


@dataclass(frozen=True, kw_only=True, slots=True)
class MediaRef:
    """The place of a medium that is not bound yet: by its name, or (None) by the order of places and files."""

    kind: MediaKind
    name: str | None = None
    frames: tuple[str, ...] = ()  # of a video that lies in the sample as images, in order
    fps: float | None = None  # of these frames


def read_part(part: object, where: str) -> TextPart | MediaRef:
    """A typed part; one without ``type`` is what its only payload says."""
    if isinstance(part, str):
        return TextPart(text=check_text(part, where))
    if not isinstance(part, Mapping):
        raise CookError(f"{where} is {short(part)}, not an object", code="cook.part")
    payloads = {name: part[name] for name in ("text", *_MEDIA_TYPES) if part.get(name) is not None}
    kind = part.get("type")
    if kind is None and len(payloads) == 1:
        kind = next(iter(payloads))
    if kind is None or not isinstance(kind, str) or (kind != "text" and kind not in _MEDIA_TYPES):
        reason = f"{where} has type {kind!r} and payload {', '.join(payloads) or 'nothing'}"
        raise CookError(reason, code="cook.part", hint=f"known types: text, {', '.join(_MEDIA_TYPES)}")
    if kind == "text":
        if len(payloads) > 1 or "text" not in payloads:
            reason = f"{where} is a text part, but its payload is {', '.join(payloads) or 'missing'}"
            raise CookError(reason, code="cook.part")
        return TextPart(text=check_text(payloads["text"], where))
    medium = _MEDIA_TYPES[kind]
    own = {name: value for name, value in payloads.items() if _MEDIA_TYPES.get(name) == medium}
    others = [name for name, value in payloads.items() if name not in own and value != ""]
    if others or len(own) > 1:
        raise CookError(f"{where} is of type {kind!r}, but also has {', '.join(others or own)}", code="cook.part")
    value = next(iter(own.values()), None)
    if medium == "video" and isinstance(value, list):
        _refuse_options(part, [name for name in _OPTIONS if name not in _RATE_KEYS], where)
        return _frame_list(value, part, where)
    _refuse_options(part, _OPTIONS, where)
    return media_ref(value, medium, where)


def _refuse_options(part: Mapping[str, Any], names: Collection[str], where: str) -> None:
    """To leave them out would train on another part of a clip, or other pixels, than the row asks for."""
    found = [name for name in names if part.get(name) is not None]
    if found:
        raise CookError(
            f"{where} sets {', '.join(found)}, which is not done for single media",
            code="cook.option",
            hint="set it for all of them (VideoConfig, min_pixels, max_pixels), cut the clip, or drop it from the row",
        )


def _frame_list(value: list[object], part: Mapping[str, Any], where: str) -> MediaRef:
    if not value or not all(isinstance(name, str) and name for name in value):
        raise CookError(f"{where} must list the names of a video's frames, got {value!r:.80}", code="cook.part")
    rates = {name: part[name] for name in _RATE_KEYS if part.get(name) is not None}
    for name, rate in rates.items():
        if isinstance(rate, bool) or not isinstance(rate, (int, float)) or not _RATES[0] <= rate <= _RATES[1]:
            wanted = f"a number from {_RATES[0]:g} to {_RATES[1]:g}"
            raise CookError(f"{name} of {where} must be {wanted}, got {rate!r:.40}", code="cook.part")
    if len(set(rates.values())) > 1:
        raise CookError(f"{where} has different values under {' and '.join(rates)}", code="cook.part")
    rate = next(iter(rates.values()), None)
    names = tuple(str(name) for name in value)
    return MediaRef(kind="video", name=names[0], frames=names, fps=None if rate is None else float(rate))


def media_ref(value: object, kind: MediaKind, where: str) -> MediaRef:
    """A reference from a name, from ``{"url": name}`` or ``{"path": name}``, or from None (bound by order)."""
    if isinstance(value, Mapping):
        names = [value[name] for name in ("url", "path") if value.get(name) is not None]
        if len(names) != 1:
            raise CookError(f"{where} must name one {kind} under 'url' or 'path', got {short(value)}", code="cook.part")
        value = names[0]
    if value is not None and (not isinstance(value, str) or not value):
        raise CookError(f"{where} must name a part of the sample such as '0.jpg', got {value!r:.80}", code="cook.part")
    return MediaRef(kind=kind, name=value)


def split_markers(text: str, markers: Collection[MediaKind]) -> list[TextPart | MediaRef]:
    """Cut ``text`` at ``<image>`` and the like, for each kind in ``markers``; no other character is lost."""
    if not markers or "<" not in text:
        return [TextPart(text=text)] if text else []
    kinds = {f"<{kind}>": kind for kind in markers}
    pieces = re.split(f"({'|'.join(map(re.escape, kinds))})", text)
    return [MediaRef(kind=kinds[piece]) if piece in kinds else TextPart(text=piece) for piece in pieces if piece]


def check_text(value: object, where: str) -> str:
    """``value`` if it is a string that can be written as UTF-8 (no half surrogate pair, which tokenizers reject)."""
    if not isinstance(value, str):
        raise CookError(f"{where} holds {short(value)} where a text is needed", code="cook.text")
    try:
        value.encode("utf-8")
    except UnicodeEncodeError as error:
        raise CookError(f"{where} holds a text that is no valid Unicode: {error.reason}", code="cook.text") from error
    return value


def short(value: object) -> str:
    return f"{type(value).__name__} {value!r:.60}"
