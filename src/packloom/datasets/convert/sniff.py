"""The first bytes of a medium enter, the extension of its true format leaves; names and claims play no part."""

from __future__ import annotations

#: (offset, bytes there) of each format, the first that fits counts.
_MAGIC: tuple[tuple[str, int, bytes], ...] = (
    ("jpg", 0, b"\xff\xd8\xff"),
    ("png", 0, b"\x89PNG\r\n\x1a\n"),
    ("gif", 0, b"GIF87a"),
    ("gif", 0, b"GIF89a"),
    ("webp", 8, b"WEBP"),
    ("avi", 8, b"AVI "),
    ("wav", 8, b"WAVE"),
    ("tif", 0, b"II*\0"),
    ("tif", 0, b"MM\0*"),
    ("jp2", 0, b"\0\0\0\x0cjP  "),
    ("jxl", 0, b"\0\0\0\x0cJXL "),
    ("jxl", 0, b"\xff\x0a"),
    ("mkv", 0, b"\x1a\x45\xdf\xa3"),
    ("flac", 0, b"fLaC"),
    ("ogg", 0, b"OggS"),
    ("mp3", 0, b"ID3"),
    ("flv", 0, b"FLV\x01"),
    ("mpg", 0, b"\0\0\x01\xba"),
)
#: The brand behind ``ftyp`` in a file of boxes; every other brand is a video.
_BRANDS = {b"avif": "avif", b"avis": "avif", b"heic": "heic", b"heix": "heic", b"mif1": "heic", b"msf1": "heic"}
_AUDIO_BRANDS = {b"M4A ", b"M4B "}


def sniff(data: bytes) -> str | None:
    """``jpg``, ``png``, ``mp4``, ... or None for what is no known image, video or audio."""
    for extension, offset, magic in _MAGIC:
        if data[offset : offset + len(magic)] == magic and (offset != 8 or data[:4] == b"RIFF"):
            return "webm" if extension == "mkv" and b"webm" in data[:64] else extension
    if data[4:8] == b"ftyp":
        brand = data[8:12]
        return "m4a" if brand in _AUDIO_BRANDS else _BRANDS.get(brand, "mov" if brand == b"qt  " else "mp4")
    if data[:2] == b"BM" and len(data) >= 26 and data[6:10] == bytes(4):
        return "bmp"
    if data[:1] == b"P" and data[1:2] in b"123456" and data[2:3].isspace():
        return {b"1": "pbm", b"4": "pbm", b"2": "pgm", b"5": "pgm"}.get(data[1:2], "ppm")
    if len(data) > 1 and data[0] == 0xFF and data[1] & 0xE0 == 0xE0 and data[1] & 0x06:
        return "mp3"
    return None
