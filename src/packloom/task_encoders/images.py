"""Compressed image bytes in; a header's size, or RGB pixels, out — by one rule whatever the format.

The rule: EXIF orientation is applied once; the first frame of an animation is taken; alpha and transparent colours are
composited on white; 16-bit grey is scaled to 8 bits (divided by 256); every other mode goes through Pillow's RGB.
"""

from __future__ import annotations

import io
from dataclasses import dataclass

import numpy as np
from PIL import ExifTags, Image, ImageOps, UnidentifiedImageError

from packloom.errors import MediaError
from packloom.image_size import is_turned, orientation
from packloom.jpeg_size import plain_jpeg_size
from packloom.types import Media

_WHITE = (255, 255, 255, 255)


@dataclass(frozen=True, kw_only=True, slots=True)
class ImageHeader:
    """An image's size as it is shown, that is after EXIF rotation."""

    height: int
    width: int


def read_header(media: Media) -> ImageHeader:
    """The size of an image without decoding it; raises MediaError for bytes that are no image."""
    if media.size is not None:
        return ImageHeader(height=media.size[1], width=media.size[0])
    if (size := plain_jpeg_size(media.data)) is not None:
        return ImageHeader(height=size[1], width=size[0])
    image = _open(media)
    if is_turned(orientation(image, media.data)):
        return ImageHeader(height=image.width, width=image.height)
    return ImageHeader(height=image.height, width=image.width)


def decode_rgb(media: Media) -> Image.Image:
    """The image as RGB pixels, upright; raises MediaError for damaged bytes and for modes with no known range."""
    image = _open(media)
    turn = orientation(image, media.data)
    try:
        image.load()
        # upright JPEGs, nearly all there is, are RGB already: to convert them would only copy them
        is_ready = image.format == "JPEG" and image.mode == "RGB" and turn == 1
        rgb = image if is_ready else _to_rgb(image, media)
    except (MemoryError, MediaError):
        raise
    except Exception as error:
        raise _unreadable(media, error) from error
    rgb.info.clear()
    return _turn(rgb, turn)


def _open(media: Media) -> Image.Image:
    if media.aux is not None and not media.data:
        hint = "packloom's loader fetches them; elsewhere call fetch of the AuxLibrary"
        raise MediaError(f"the bytes of {media.name} were not fetched", code="media.not_fetched", hint=hint)
    try:
        return Image.open(io.BytesIO(media.data))
    except Image.DecompressionBombError as error:
        raise MediaError(f"{media.name}: {error}", code="media.too_many_pixels", hint="remove or shrink it") from error
    except MemoryError:
        raise
    except Exception as error:  # decoders raise any type on malformed bytes
        raise _unreadable(media, error) from error


def _unreadable(media: Media, error: Exception) -> MediaError:
    # Pillow's own text for an unknown format carries a memory address
    what = "unknown format" if isinstance(error, UnidentifiedImageError) else f"{type(error).__name__}: {error}"
    return MediaError(
        f"{media.name} ({len(media.data)} bytes) is not a readable image: {what}",
        code="media.unreadable",
    )


def _to_rgb(image: Image.Image, media: Media) -> Image.Image:
    if image.mode.startswith("I;16") or image.mode == "I":
        return _grey16(np.asarray(image).astype(np.int64), media)
    if image.mode == "F":
        raise MediaError(
            f"{media.name} has float pixels, whose range is unknown",
            code="media.mode",
            hint="convert it to 8 or 16 bits",
        )
    if "A" in image.getbands() or "a" in image.getbands() or "transparency" in image.info:
        rgba = image.convert("RGBA")
        return Image.alpha_composite(Image.new("RGBA", rgba.size, _WHITE), rgba).convert("RGB")
    return image.convert("RGB")


def _grey16(values: np.ndarray, media: Media) -> Image.Image:
    if values.min() < 0 or values.max() > 0xFFFF:
        raise MediaError(
            f"{media.name} has grey values {values.min()}..{values.max()}, outside 16 bits",
            code="media.mode",
            hint="convert it to 8 or 16 bits",
        )
    return Image.fromarray((values >> 8).astype(np.uint8)).convert("RGB")


def _turn(image: Image.Image, turn: int) -> Image.Image:
    """Apply one EXIF orientation (2 to 8) to pixels that carry none themselves."""
    if not 2 <= turn <= 8:
        return image
    image.getexif()[ExifTags.Base.Orientation] = turn
    return ImageOps.exif_transpose(image)
