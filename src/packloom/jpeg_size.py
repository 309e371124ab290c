"""The bytes of a JPEG enter, its width and height leave, if its header is of the plain kind that nearly all have."""

from __future__ import annotations

import struct

from PIL import Image

_START = b"\xff\xd8\xff"
_SCAN = 0xFFDA
_QUANTIZATION = 0xFFDB
#: Baseline, extended and progressive Huffman frames.
_FRAMES = (0xFFC0, 0xFFC1, 0xFFC2)
#: Huffman tables, restart interval, comment.
_PASSED_OVER = (0xFFC4, 0xFFDD, 0xFFFE)
#: Segments of applications that may be passed over, each with what it starts with and its least length.
_APPLICATIONS = {0xFFE0: (b"JFIF\0", 16), 0xFFE2: (b"ICC_PROFILE\0", 18), 0xFFEE: (b"Adobe", 14)}
_TABLE_BYTES = 65  # of 8 bits

_segment_head = struct.Struct(">HH").unpack_from  # marker, length of what follows the marker
_frame_head = struct.Struct(">BHHB").unpack_from  # bits per sample, height, width, components


def plain_jpeg_size(data: bytes) -> tuple[int, int] | None:
    """(width, height) as stored, where it is certain that Pillow opens the file and finds no EXIF or XMP in it.

    None stands for anything unusual or damaged: ask Pillow, which takes ten times as long. Source of the layout: ITU-T
    T.81, annex B.
    """
    if not data.startswith(_START):
        return None
    place, size = 2, None
    try:
        while True:
            marker, length = _segment_head(data, place)
            start, place = place + 4, place + 2 + length
            if length < 2 or place > len(data):
                return None
            if marker == _SCAN:
                return size
            if marker in _FRAMES and size is None:
                size = _frame_size(data, start, length)
                if size is None:
                    return None
            elif not _is_passed_over(data, marker, start, length):
                return None
    except struct.error:  # the data end first
        return None


def _frame_size(data: bytes, start: int, length: int) -> tuple[int, int] | None:
    bits, height, width, num_components = _frame_head(data, start)
    most = Image.MAX_IMAGE_PIXELS or width * height  # over it, Pillow warns or refuses
    is_plain = bits == 8 and num_components in (1, 3, 4) and length == 8 + 3 * num_components
    return (width, height) if is_plain and 0 < width * height <= most else None


def _is_passed_over(data: bytes, marker: int, start: int, length: int) -> bool:
    if marker == _QUANTIZATION:
        end = start + length - 2
        return (length - 2) % _TABLE_BYTES == 0 and all(data[at] < 16 for at in range(start, end, _TABLE_BYTES))
    if marker in _APPLICATIONS:
        first, least = _APPLICATIONS[marker]
        return length >= least and data.startswith(first, start)
    return marker in _PASSED_OVER
