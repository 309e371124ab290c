"""A raw sample enters, its key and its parts as bytes leave, in writing order and proved to be readable again."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from functools import lru_cache
from typing import Any

from packloom.datasets.naming import split_name
from packloom.errors import SampleError

#: Most keys: nothing to look at piece by piece.
_PLAIN_KEY = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]*(/[A-Za-z0-9][A-Za-z0-9_-]*)*")


def encode_parts(sample: Mapping[str, Any], *, number: int) -> tuple[str, dict[str, bytes]]:
    """The key and the parts (lower-cased name → bytes, json first) of the sample at place ``number``.

    Raises SampleError with a ``write.*`` code for what WebDataset's naming rule would cut, merge, hide or lose.
    """
    key = sample.get("__key__")
    if not isinstance(key, str) or not key:
        reason = f"sample number {number} needs a non-empty string under '__key__', got {key!r}"
        raise SampleError(reason, code="write.key", hint="give every sample a key such as '000123'")
    _check_key(key)
    parts: dict[str, bytes] = {}
    for name, value in sample.items():
        if isinstance(name, str) and name.startswith("__") and name.endswith("__"):
            continue
        lowered = _check_part_name(key, name)
        if lowered in parts:
            reason = f"two parts are both named {lowered!r} once lower-cased, as every reader does"
            raise SampleError(reason, key=key, code="write.case_collision", hint="rename one of them")
        parts[lowered] = _encode(key, lowered, value)
    if not parts:
        raise SampleError("has no parts", key=key, code="write.no_parts", hint="add a json part or drop the sample")
    return key, {name: parts[name] for name in sorted(parts, key=lambda name: (name != "json", name))}


def _check_key(key: str) -> None:
    if _PLAIN_KEY.fullmatch(key):
        return
    pieces = key.split("/")
    if "." in pieces[-1] and pieces[-1] not in (".", ".."):
        reason = "has a dot in its last path piece, where WebDataset cuts the key off"
        raise SampleError(reason, key=key, code="write.key", hint=f"use {pieces[-1].replace('.', '_')!r}")
    faults = {
        "is an absolute path": key.startswith("/"),
        "starts with '__', which WebDataset skips": key.startswith("__"),
        "holds an empty, '.' or '..' path piece": any(piece in ("", ".", "..") for piece in pieces),
        "holds a backslash": "\\" in key,
        "holds a control character": any(ord(letter) < 32 or ord(letter) == 127 for letter in key),
        "is not valid Unicode": not _is_unicode(key),
    }
    for fault, present in faults.items():
        if present:
            raise SampleError(
                f"the key {fault}", key=key, code="write.key", hint="use a plain relative key: 'a/000123'"
            )


def _check_part_name(key: str, name: object) -> str:
    if not isinstance(name, str):
        raise SampleError(f"part name {name!r} is not a string", key=key, code="write.part_name")
    if not _is_sound_part_name(name):
        reason = f"part name {name!r} would not be read back as it is"
        raise SampleError(reason, key=key, code="write.part_name", hint="name parts like 'json', 'txt' or '0.jpg'")
    return name.lower()


@lru_cache(maxsize=1024)
def _is_sound_part_name(name: str) -> bool:
    """Whether it is read back, lower-cased, behind any key that has no dot in its last piece."""
    lowered = name.lower()
    is_text = not name.startswith("_") and all(lowered.split(".")) and _is_unicode(name) and lowered.isprintable()
    return is_text and "\\" not in name and split_name(f"key.{lowered}") == ("key", lowered)


def _encode(key: str, name: str, value: Any) -> bytes:
    if isinstance(value, (bytes, bytearray, memoryview)):
        return bytes(value)
    try:
        if isinstance(value, str):
            return value.encode("utf-8")
        if isinstance(value, Mapping) and name.split(".")[-1] == "json":
            return json.dumps(value, ensure_ascii=False, allow_nan=False).encode("utf-8")
    except (TypeError, ValueError, RecursionError) as error:
        reason = f"part {name!r} cannot be written as UTF-8 text or JSON: {error}"
        raise SampleError(reason, key=key, code="write.part_value") from error
    reason = f"part {name!r} is {type(value).__name__}, not bytes, text or (under json) a dict"
    raise SampleError(reason, key=key, code="write.part_value", hint="encode it to bytes first")


def _is_unicode(text: str) -> bool:
    """False for a text with half a surrogate pair, which no UTF-8 file can hold."""
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        return False
    return True
