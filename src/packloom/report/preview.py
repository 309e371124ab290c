"""Images go in; small copies of them, as data URIs that together stay within a number of bytes, come out."""

from __future__ import annotations

import base64
import io
from collections.abc import Sequence

from PIL import Image

from packloom.task_encoders.images import decode_rgb
from packloom.types import Media

#: Longest sides, in pixels, that are tried one after the other.
_SIDES = (640, 480, 320, 200, 120, 64)
_QUALITY = 82


def previews(media: Sequence[Media], *, max_bytes: int) -> list[str]:
    """One data URI per image; each may take an equal share of ``max_bytes``. Raises MediaError for a damaged image."""
    share = max_bytes // max(1, len(media)) * 3 // 4  # base64 takes a third more
    return [f"data:image/jpeg;base64,{base64.b64encode(_shrunk(item, share)).decode()}" for item in media]


def _shrunk(media: Media, max_bytes: int) -> bytes:
    """JPEG of the largest size that fits, or of the smallest."""
    image = decode_rgb(media)
    data = b""
    for side in _SIDES:
        image.thumbnail((side, side), Image.Resampling.LANCZOS)
        file = io.BytesIO()
        image.save(file, format="JPEG", quality=_QUALITY)
        data = file.getvalue()
        if len(data) <= max_bytes:
            break
    return data
