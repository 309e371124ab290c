"""The short way to a JPEG's size against Pillow: wherever it answers, Pillow says the same."""

from __future__ import annotations

import io

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import ExifTags, Image, ImageCms

from packloom.image_size import image_size
from packloom.jpeg_size import plain_jpeg_size


def _jpeg(mode: str, size: tuple[int, int], **options: object) -> bytes:
    target = io.BytesIO()
    Image.new(mode, size).save(target, "JPEG", **options)
    return target.getvalue()


def _by_pillow(data: bytes) -> tuple[int, int] | None:
    """None for what Pillow does not open, or what it may show turned."""
    try:
        image = Image.open(io.BytesIO(data), formats=["JPEG"])
    except (OSError, SyntaxError, Image.DecompressionBombError):
        return None
    return None if "exif" in image.info or "xmp" in image.info else image.size


PROFILE = ImageCms.ImageCmsProfile(ImageCms.createProfile("sRGB")).tobytes()
PLAIN = {
    "baseline": _jpeg("RGB", (70, 30)),
    "grey": _jpeg("L", (70, 30)),
    "cmyk": _jpeg("CMYK", (70, 30)),  # with Adobe's segment
    "progressive": _jpeg("RGB", (70, 30), progressive=True, optimize=True),
    "profile": _jpeg("RGB", (70, 30), icc_profile=PROFILE),
    "long profile": _jpeg("RGB", (70, 30), icc_profile=PROFILE * 200),
    "comment": _jpeg("RGB", (70, 30), comment=b"\xff\xc0 no frame"),
    "restarts": _jpeg("RGB", (70, 30), restart_marker_rows=1, dpi=(72, 72)),
}


@pytest.mark.parametrize("name", PLAIN)
def test_plain_headers_are_read_here(name: str) -> None:
    assert plain_jpeg_size(PLAIN[name]) == (70, 30) == _by_pillow(PLAIN[name])


def test_what_may_be_turned_or_is_no_jpeg_is_left_to_pillow() -> None:
    exif = Image.Exif()
    exif[ExifTags.Base.Orientation] = 6
    turned = _jpeg("RGB", (70, 30), exif=exif)
    assert image_size(turned) == (30, 70)
    xmp = _jpeg("RGB", (70, 30), xmp=b'<x tiff:Orientation="6"/>')
    others = [turned, xmp, b"", b"\x89PNG\r\n\x1a\n", b"\xff\xd8\xff", b"\xff\xd8\xff\xe0"]
    assert [plain_jpeg_size(data) for data in others] == [None] * 6


def test_pillows_limit_of_pixels_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 2099)
    assert plain_jpeg_size(PLAIN["baseline"]) is None
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", None)
    assert plain_jpeg_size(PLAIN["baseline"]) == (70, 30)


@settings(max_examples=1500, deadline=None)
@given(
    name=st.sampled_from(sorted(set(PLAIN) - {"long profile"})),
    end=st.integers(0, 3000),
    changes=st.lists(st.tuples(st.integers(0, 700), st.integers(0, 255)), max_size=4),
    marker=st.sampled_from([0, *range(0xC0, 0xFF)]),
    at=st.integers(0, 30),
)
def test_a_damaged_header_never_gets_a_size_that_pillow_denies(
    name: str, end: int, changes: list[tuple[int, int]], marker: int, at: int
) -> None:
    data = bytearray(PLAIN[name])
    for place, value in changes:
        if place < len(data):
            data[place] = value
    places = [place for place in range(2, min(len(data), 900)) if data[place] == 0xFF]
    if marker and at < len(places) and places[at] + 1 < len(data):
        data[places[at] + 1] = marker  # one segment under another name
    size = plain_jpeg_size(bytes(data[: end if end % 3 == 0 else None]))
    if size is not None:
        assert _by_pillow(bytes(data[: end if end % 3 == 0 else None])) == size
