"""The one RGB rule: orientation, alpha, 16 bits, and what is refused."""

from __future__ import annotations

import io

import numpy as np
import pytest
from PIL import Image, ImageOps

from packloom.errors import MediaError
from packloom.task_encoders.images import decode_rgb, read_header
from packloom.types import Media


def media(image: Image.Image, form: str, **options: object) -> Media:
    buffer = io.BytesIO()
    image.save(buffer, form, **options)
    return Media(kind="image", name=f"0.{form.lower()}", data=buffer.getvalue())


def exif(orientation: int) -> Image.Exif:
    made = Image.Exif()
    made[0x0112] = orientation
    return made


@pytest.mark.parametrize("form", ["JPEG", "PNG", "WEBP", "TIFF"])
@pytest.mark.parametrize("orientation", [*range(1, 9), 9])  # 9 means nothing
def test_orientation_is_applied_once_to_size_and_pixels(orientation, form):
    picture = Image.fromarray(np.arange(6 * 10 * 3, dtype=np.uint8).reshape(6, 10, 3))
    options = {"lossless": True} if form == "WEBP" else {}
    item = media(picture, form, exif=exif(orientation), **options)
    header, pixels = read_header(item), decode_rgb(item)

    assert (header.height, header.width) == ((10, 6) if 5 <= orientation <= 8 else (6, 10))
    assert pixels.size == (header.width, header.height)
    with Image.open(io.BytesIO(item.data)) as opened:
        oracle = ImageOps.exif_transpose(opened).convert("RGB")
    assert np.array_equal(np.asarray(pixels), np.asarray(oracle))
    assert pixels.getexif().get(0x0112, 1) == 1  # nothing is left for a later stage to apply again


def test_the_header_is_read_without_decoding(monkeypatch):
    items = [media(Image.new("RGB", (30, 20)), form) for form in ("JPEG", "PNG", "WEBP", "GIF", "TIFF", "BMP")]

    def decodes(self):
        raise AssertionError("pixels were decoded")

    for kind in {type(Image.open(io.BytesIO(item.data))) for item in items}:
        monkeypatch.setattr(kind, "load", decodes)
    assert {(read_header(item).height, read_header(item).width) for item in items} == {(20, 30)}


def test_alpha_and_transparent_colours_are_white():
    rgba = Image.fromarray(np.array([[[255, 0, 0, 255], [255, 0, 0, 0], [0, 0, 0, 128]]], dtype=np.uint8))
    assert np.asarray(decode_rgb(media(rgba, "PNG"))).tolist() == [[[255, 0, 0], [255, 255, 255], [127, 127, 127]]]
    grey_alpha = Image.merge("LA", (Image.new("L", (1, 1), 9), Image.new("L", (1, 1), 0)))
    assert np.asarray(decode_rgb(media(grey_alpha, "PNG"))).tolist() == [[[255, 255, 255]]]
    palette = Image.new("P", (1, 1), 0)
    palette.putpalette([1, 2, 3])
    assert np.asarray(decode_rgb(media(palette, "PNG", transparency=0))).tolist() == [[[255, 255, 255]]]
    keyed = Image.new("RGB", (1, 1), (7, 8, 9))
    assert np.asarray(decode_rgb(media(keyed, "PNG", transparency=(7, 8, 9)))).tolist() == [[[255, 255, 255]]]


def test_sixteen_bits_are_scaled_not_clipped():
    grey = Image.fromarray(np.array([[0, 255, 256, 32_768, 65_535]], dtype=np.uint16))
    assert np.asarray(decode_rgb(media(grey, "PNG")))[0, :, 0].tolist() == [0, 0, 1, 128, 255]
    wide = Image.fromarray(np.array([[0, 65_535]], dtype=np.int32))
    assert np.asarray(decode_rgb(media(wide, "TIFF")))[0, :, 0].tolist() == [0, 255]


@pytest.mark.parametrize(
    ("image", "reason"),
    [
        (Image.fromarray(np.array([[0.5]], dtype=np.float32)), "float pixels"),
        (Image.fromarray(np.array([[70_000]], dtype=np.int32)), "grey values 70000..70000, outside 16 bits"),
    ],
)
def test_pixels_of_unknown_range_are_refused(image, reason):
    with pytest.raises(MediaError, match=reason):
        decode_rgb(media(image, "TIFF"))


@pytest.mark.parametrize("data", [b"", b"no image", b"\x89PNG\r\n\x1a\n", b"GIF89a"])
def test_other_bytes_are_refused(data):
    with pytest.raises(MediaError, match=r"0.jpg \(\d+ bytes\) is not a readable image"):
        read_header(Media(kind="image", name="0.jpg", data=data))


def test_every_cut_of_a_jpeg_is_refused_or_whole():
    whole = media(Image.effect_noise((64, 48), 80).convert("RGB"), "JPEG").data
    refused = 0
    for length in range(0, len(whole) - 2, 97):
        try:
            decode_rgb(Media(kind="image", name="0.jpg", data=whole[:length]))
        except MediaError:
            refused += 1
    assert refused == len(range(0, len(whole) - 2, 97))
