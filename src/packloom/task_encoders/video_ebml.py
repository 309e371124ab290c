"""The bytes of a WebM or Matroska file in; how many bytes are missing at its end, by its header, out."""

from __future__ import annotations

_EBML, _SEGMENT = 0x1A45DFA3, 0x18538067


def missing_bytes(data: bytes) -> int:
    """0 where nothing is missing, where the header does not say (a live recording), and for any other kind of file.

    Source: the segment is the element behind the EBML header, RFC 8794 sections 4 to 6 and RFC 9559 section 5.
    """
    header = _element(data, 0)
    if header is None or header[0] != _EBML or header[2] is None:
        return 0
    segment = _element(data, header[1] + header[2])
    if segment is None or segment[0] != _SEGMENT or segment[2] is None:
        return 0
    return max(0, segment[1] + segment[2] - len(data))


def _element(data: bytes, place: int) -> tuple[int, int, int | None] | None:
    """(id, where its content starts, size of the content or None where it is left open) of the element at a place."""
    identity = _number(data, place, marked=True)
    if identity is None:
        return None
    size = _number(data, place + identity[1], marked=False)
    if size is None:
        return None
    length = size[1]
    is_open = size[0] == (1 << 7 * length) - 1
    return identity[0], place + identity[1] + length, None if is_open else size[0]


def _number(data: bytes, place: int, *, marked: bool) -> tuple[int, int] | None:
    """A number of variable length, with or without the bit that marks its length, and that length in bytes."""
    if place >= len(data) or not data[place]:
        return None
    length = 9 - data[place].bit_length()
    if place + length > len(data):
        return None
    value = int.from_bytes(data[place : place + length], "big")
    return (value if marked else value & ((1 << 7 * length) - 1)), length
