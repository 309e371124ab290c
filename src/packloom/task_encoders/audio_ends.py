"""The bytes of an audio file in; a refusal of those that the library would misread without a word, out.

FFmpeg reads the 24-bit samples of a big-endian wav as little-endian ones. It takes the length of a cut wav from the
size of the file, and that of a cut ogg from its last whole page; and what follows no samples in a wav, for samples.
"""

from __future__ import annotations

from collections.abc import Iterator

from packloom.errors import MediaError
from packloom.task_encoders.video_ebml import missing_bytes
from packloom.types import Media

_UNKNOWN = (0, 0xFFFFFFFF)  # sizes of a wav that was written as a stream
_LAST_PAGE, _PAGE_HEAD = 0x04, 27


def check_end(media: Media) -> None:
    """Raises MediaError for a wav, webm or mkv with fewer bytes than its header says, or an ogg without its last page.

    A big-endian wav is refused too.
    """
    if media.data[:4] == b"RIFX":
        raise MediaError(
            f"{media.name} is a big-endian wav, which is not read", code="media.codec", hint="convert it to wav or flac"
        )
    if media.data[:4] == b"RIFF" and media.data[8:12] == b"WAVE":
        _check_wav(media)
    elif media.data[:4] == b"OggS":
        _check_ogg(media)
    elif missing := missing_bytes(media.data):
        raise _cut(media, f"{missing} bytes are missing at its end")


def _check_wav(media: Media) -> None:
    for name, place, size in _chunks(media.data, 12):
        if name == b"data":
            there = len(media.data) - place
            if size == 0 and there and _are_chunks(media.data, place):
                raise MediaError(f"{media.name} holds no samples, only other chunks", code="media.empty")
            if size not in _UNKNOWN and there < size:
                raise _cut(media, f"its header says {size} bytes of samples, {there} are there")
            return


def _are_chunks(data: bytes, place: int) -> bool:
    """Whether nothing but whole chunks lies there, up to the end: samples do not look so."""
    for name, content, size in _chunks(data, place):
        if not (name.isascii() and name.decode("ascii").isprintable()):
            return False
        place = content + size + size % 2
    return len(data) <= place <= len(data) + 1  # a last chunk of odd size may lack its padding


def _chunks(data: bytes, place: int) -> Iterator[tuple[bytes, int, int]]:
    """(name, where the content starts, its size) of each chunk from ``place`` on.

    Source: the chunks of the RIFF format, each a name, a size and so many bytes, padded to an even number.
    """
    while place + 8 <= len(data):
        name, size = data[place : place + 4], int.from_bytes(data[place + 4 : place + 8], "little")
        yield name, place + 8, size
        place += 8 + size + size % 2


def _check_ogg(media: Media) -> None:
    """Source: RFC 3533, section 6: byte 5 holds flags, byte 26 the number of segments, whose lengths follow."""
    place = media.data.rfind(b"OggS")
    head = media.data[place : place + _PAGE_HEAD]
    if len(head) < _PAGE_HEAD or not head[5] & _LAST_PAGE:
        raise _cut(media, "its last page is missing")
    lengths = media.data[place + _PAGE_HEAD : place + _PAGE_HEAD + head[26]]
    if len(lengths) < head[26] or place + _PAGE_HEAD + len(lengths) + sum(lengths) > len(media.data):
        raise _cut(media, "its last page is not whole")


def _cut(media: Media, what: str) -> MediaError:
    return MediaError(f"{media.name}: {what}: the file is cut", code="media.truncated", hint="fetch it again")
