"""The bytes of a part enter, the width and height of the image in it leave, read from its header without decoding."""

from __future__ import annotations

import io
import warnings

from PIL import Image

#: What the first bytes must be for Pillow to be asked; a name says little about a part.
_STARTS = (b"\xff\xd8\xff", b"\x89PNG\r\n\x1a\n", b"GIF8", b"RIFF", b"BM", b"II*\0", b"MM\0*")
_FORMATS = ("JPEG", "PNG", "GIF", "WEBP", "BMP", "TIFF")
_ORIENTATION = 0x0112


def image_size(data: bytes) -> tuple[int, int]:
    """(width, height) in pixels as the image is shown, after EXIF rotation; (0, 0) for what is no readable image.

    An index only notes sizes; whoever needs the image opens it and says what is wrong with it.
    """
    if not data.startswith(_STARTS):
        return 0, 0
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", Image.DecompressionBombWarning)  # nothing is decoded here
            image = Image.open(io.BytesIO(data), formats=_FORMATS)
        if _is_turned(image, data):
            return image.height, image.width
    except MemoryError:
        raise
    except Exception:  # noqa: BLE001 - decoders raise any type on malformed bytes
        return 0, 0
    return image.width, image.height


def _is_turned(image: Image.Image, data: bytes) -> bool:
    """Whether EXIF swaps the sides (orientations 5 to 8)."""
    if image.format == "TIFF":
        return False  # Pillow turns these itself
    if image.format == "PNG" and "exif" not in image.info and b"eXIf" not in data:
        return False  # Pillow would decode the pixels to look for a late chunk
    if image.format == "JPEG" and not ("exif" in image.info or "xmp" in image.info):
        return False  # the usual case, which Pillow takes long to find
    try:
        return 5 <= int(image.getexif().get(_ORIENTATION, 1)) <= 8  # other numbers mean nothing
    except Exception:  # noqa: BLE001 - damaged metadata of a readable image: viewers show it unrotated
        return False
