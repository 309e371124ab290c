"""Images and frames go in; small copies of them, as data URIs that together stay within a number of bytes, come out."""

from __future__ import annotations

import base64
import io
from collections.abc import Sequence

import numpy as np
from PIL import Image

from packloom.errors import MediaError
from packloom.task_encoders.images import decode_rgb
from packloom.task_encoders.video import decode_frames, read_clip
from packloom.types import EncodedMedia, Media

#: Longest sides, in pixels, that are tried one after the other.
_SIDES = (640, 480, 320, 200, 120, 64)
_FRAME_SIDES = (240, 160, 120, 64)
_QUALITY = 82


def previews(media: Sequence[Media], *, max_bytes: int) -> list[str]:
    """One data URI per image; each may take an equal share of ``max_bytes``. Raises MediaError for a damaged image."""
    share = max_bytes // max(1, len(media))
    return [_uri(decode_rgb(item), _SIDES, share) for item in media]


def frame_previews(item: EncodedMedia, places: Sequence[int], *, max_bytes: int) -> list[str]:
    """One data URI for each of these places among the frames that are taken of a video, which share ``max_bytes``.

    Raises MediaError for damaged frames, CapabilityError without PyAV.
    """
    if item.frames is None:
        raise MediaError(f"{item.media.name}: its frames were not chosen", code="media.unsupported")
    indices = [item.frames.indices[place] for place in places]
    small = decode_frames(item.media, read_clip(item.media), indices, _small)
    share = max_bytes // max(1, len(places))
    return [_uri(Image.fromarray(frame), _FRAME_SIDES, share) for frame in small]


def _small(frame: np.ndarray) -> np.ndarray:
    """[H, W, 3] uint8, at most as large as a preview."""
    image = Image.fromarray(frame)
    image.thumbnail((_FRAME_SIDES[0],) * 2, Image.Resampling.LANCZOS)
    return np.asarray(image)


def _uri(image: Image.Image, sides: Sequence[int], max_bytes: int) -> str:
    """JPEG of the largest size that fits, or of the smallest; base64 takes a third more."""
    data = b""
    for side in sides:
        image.thumbnail((side, side), Image.Resampling.LANCZOS)
        file = io.BytesIO()
        image.save(file, format="JPEG", quality=_QUALITY)
        data = file.getvalue()
        if len(data) <= max_bytes * 3 // 4:
            break
    return f"data:image/jpeg;base64,{base64.b64encode(data).decode()}"
