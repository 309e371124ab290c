"""A file of JSON rows enters, the byte range of each row leaves: of one object per line, or of one array of them."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

from packloom.errors import ShardError

_CHUNK = 8 << 20
_BOM = b"\xef\xbb\xbf"
_TOKEN = re.compile(rb'\\.|["{}\[\]]', re.DOTALL)
_WANTED = "one JSON object per line, or one array of objects, is needed"


def scan_rows(path: Path) -> Iterator[tuple[int, int]]:
    """(start, stop) in bytes of each row in order, blank lines left out; a row may still turn out not to be JSON.

    Memory stays at some megabytes. Raises ShardError for an array that is cut off or holds anything but objects.
    """
    with path.open("rb") as file:
        head = file.read(1 << 20)
        start = len(_BOM) if head.startswith(_BOM) else 0
        text = head[start:].lstrip()
        if text[:1] == b"[":
            yield from _array_rows(file, path, head.index(b"[") + 1)
            return
        if path.suffix.lower() == ".json" and text[:1] == b"{":
            _check_lines(text, path)
        file.seek(start)
        yield from _line_rows(file, start)


def _check_lines(text: bytes, path: Path) -> None:
    """Refuse a ``.json`` file that is one object over several lines, each of which would count as a bad row."""
    line, end, _ = text.partition(b"\n")
    try:
        json.loads(line)
    except ValueError as error:
        if end:
            raise ShardError(f"{path} holds one JSON object, but {_WANTED}") from error


def _line_rows(file: BinaryIO, start: int) -> Iterator[tuple[int, int]]:
    for line in file:
        if line.strip():
            yield start, start + len(line)
        start += len(line)


def _array_rows(file: BinaryIO, path: Path, start: int) -> Iterator[tuple[int, int]]:
    """The elements of the array whose first bracket ends at ``start``."""
    depth, in_string, first, last = 1, False, 0, start
    for offset, chunk in _whole_escapes(file, start):
        for token in _TOKEN.finditer(chunk):
            letter = token[0]
            if letter == b'"':
                in_string = not in_string
            elif in_string or len(letter) > 1:
                continue
            elif letter in b"{[":
                if depth == 1:
                    first = offset + token.start()
                    _check_gap(file, path, last, first, is_first=last == start)
                depth += 1
            else:
                depth -= 1
                if depth == 1:
                    last = offset + token.end()
                    yield first, last
                elif depth == 0:
                    _check_gap(file, path, last, offset + token.start(), is_first=True)
                    _check_rest(file, path, offset + token.end())
                    return
    raise ShardError(f"{path} is cut off: its array of rows does not end. Fetch or write the file again")


def _whole_escapes(file: BinaryIO, start: int) -> Iterator[tuple[int, bytes]]:
    """Chunks with their offsets; none ends between a backslash and what it escapes."""
    file.seek(start)
    while chunk := file.read(_CHUNK):
        if (len(chunk) - len(chunk.rstrip(b"\\"))) % 2:
            chunk += file.read(1)
        yield start, chunk
        start += len(chunk)
        file.seek(start)  # a consumer may have read elsewhere meanwhile


def _check_gap(file: BinaryIO, path: Path, start: int, stop: int, *, is_first: bool) -> None:
    """Between two rows stands a comma and nothing else; a number or a text there would be a row of its own."""
    file.seek(start)
    found = file.read(min(stop - start, 1 << 16)).strip()
    if found != (b"" if is_first else b","):
        raise ShardError(f"{path}: near byte {start} stands {found[:40]!r} where a row is due: {_WANTED}")


def _check_rest(file: BinaryIO, path: Path, start: int) -> None:
    file.seek(start)
    while chunk := file.read(_CHUNK):
        if chunk.strip():
            raise ShardError(f"{path} goes on behind its array of rows, at byte {start}: {_WANTED}")
