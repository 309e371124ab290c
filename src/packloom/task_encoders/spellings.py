"""A text or value of the data in, the ways in which a chat template may write it out."""

from __future__ import annotations

import json
from collections.abc import Iterator


def trimmed(text: str) -> Iterator[str]:
    """The text itself first: few templates trim."""
    yield text
    yield from (text.strip(), text.rstrip(), text.lstrip(), text.strip("\n"), text.lstrip("\n"), text.rstrip("\n"))


def spellings(value: str | float | bool | None, *, capitals: bool = False) -> Iterator[str]:
    """A text as it is or escaped as in JSON or Python, with ``capitals`` in capitals too; other values likewise."""
    if not isinstance(value, str):
        yield from (json.dumps(value), str(value))
        return
    yield from trimmed(value)
    for escaped in (json.dumps(value, ensure_ascii=False), json.dumps(value), repr(value)):
        yield from trimmed(escaped[1:-1])
    if capitals:
        yield from trimmed(value.upper())
