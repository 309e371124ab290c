"""The bytes of an MP4 or QuickTime file in; how its video is turned when it is shown, from its header, out."""

from __future__ import annotations

import math
import struct
from collections.abc import Iterator

#: Of the numbers in a matrix, by editors that compute a sine and a cosine.
_ROUNDING = 0.01


def mp4_rotation(data: bytes) -> int | None:
    """Quarter turns, anticlockwise, from the stored frames to the shown ones; 0 for any other kind of file.

    None where they are mirrored, slanted or stretched, which no turning shows. Source: the matrix of the track header
    box, ISO/IEC 14496-12 section 8.3.2, of the first track with video.
    """
    if data[4:8] not in (b"ftyp", b"moov", b"mdat", b"wide", b"free", b"skip"):
        return 0
    for moov in _boxes(data, 0, len(data), b"moov"):
        for start, end in _boxes(data, *moov, b"trak"):
            if _is_video(data, start, end):
                for header, stop in _boxes(data, start, end, b"tkhd"):
                    return _turns(data[header:stop])
    return 0


def _boxes(data: bytes, start: int, end: int, wanted: bytes) -> Iterator[tuple[int, int]]:
    """Where the contents of each box of a kind start and end, among the boxes from ``start`` to ``end``."""
    while start + 8 <= end:
        size, kind = struct.unpack_from(">I4s", data, start)
        head = 8
        if size == 1 and start + 16 <= end:
            (size,) = struct.unpack_from(">Q", data, start + 8)
            head = 16
        stop = end if size == 0 else min(end, start + size)
        if stop < start + head:
            return
        if kind == wanted:
            yield start + head, stop
        start = stop


def _is_video(data: bytes, start: int, end: int) -> bool:
    for mdia in _boxes(data, start, end, b"mdia"):
        for first, last in _boxes(data, *mdia, b"hdlr"):
            return data[first + 8 : min(last, first + 12)] == b"vide"
    return False


def _turns(header: bytes) -> int | None:
    """Source: a point (x, y) is shown at (a x + c y, b x + d y)."""
    place = 40 if header[:1] == b"\x00" else 52  # version 1 has longer times
    if len(header) < place + 36:
        return 0
    a, b, _, c, d = struct.unpack_from(">5i", header, place)
    if not any((a, b, c, d)):
        return 0
    turns = round(-math.degrees(math.atan2(b, a)) / 90) % 4
    cosine, sine = ((1, 0), (0, -1), (-1, 0), (0, 1))[turns]
    size = max(map(abs, (a, b, c, d)))
    wanted = (cosine, sine, -sine, cosine)
    is_turn = all(abs(found / size - right) < _ROUNDING for found, right in zip((a, b, c, d), wanted, strict=True))
    return turns if is_turn else None
