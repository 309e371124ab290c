"""The bytes of a part enter, the width and height of the image in it leave, read from its header without decoding."""

from __future__ import annotations

import io
import warnings

from PIL import ExifTags, Image

from packloom.jpeg_size import plain_jpeg_size

#: What the first bytes must be for Pillow to be asked; a name says little about a part.
_STARTS = (b"\xff\xd8\xff", b"\x89PNG\r\n\x1a\n", b"GIF8", b"RIFF", b"BM", b"II*\0", b"MM\0*")
_FORMATS = ("JPEG", "PNG", "GIF", "WEBP", "BMP", "TIFF")


def image_size(data: bytes) -> tuple[int, int]:
    """(width, height) in pixels as the image is shown, after EXIF rotation; (0, 0) for what is no readable image.

    An index only notes sizes; whoever needs the image opens it and says what is wrong with it.
    """
    if not data.startswith(_STARTS):
        return 0, 0
    if (size := plain_jpeg_size(data)) is not None:
        return size
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", Image.DecompressionBombWarning)  # nothing is decoded here
            image = Image.open(io.BytesIO(data), formats=_FORMATS)
        turned = is_turned(orientation(image, data))
    except MemoryError:
        raise
    except Exception:  # noqa: BLE001 - decoders raise any type on malformed bytes
        return 0, 0
    return (image.height, image.width) if turned else (image.width, image.height)


def orientation(image: Image.Image, data: bytes) -> int:
    """What EXIF says of how the opened image ``data`` is to be shown: 1 as it is stored, 2 to 8 turned or mirrored."""
    if image.format == "TIFF":
        return 1  # Pillow turns these itself, size and pixels
    if image.format == "PNG" and "exif" not in image.info and b"eXIf" not in data:
        return 1  # Pillow would decode the pixels to look for a late chunk
    if image.format == "JPEG" and not ("exif" in image.info or "xmp" in image.info):
        return 1  # the usual case, which Pillow takes long to find
    try:
        return int(image.getexif().get(ExifTags.Base.Orientation, 1))
    except Exception:  # noqa: BLE001 - damaged metadata of a readable image: viewers show it unrotated
        return 1


def is_turned(orientation: int) -> bool:
    """Whether the sides are swapped; other numbers than 1 to 8 mean nothing."""
    return 5 <= orientation <= 8
