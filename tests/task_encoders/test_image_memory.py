"""Pixels in Pillow's own memory are those that NumPy copies."""

import gc

import numpy as np
import pytest
from PIL import Image

from packloom.task_encoders import image_memory
from packloom.task_encoders.image_memory import pixels_of


def image_of(height: int, width: int) -> Image.Image:
    return Image.fromarray(np.random.default_rng(0).integers(0, 256, (height, width, 3), dtype=np.uint8))


@pytest.mark.parametrize("size", [(1, 1), (1, 7), (5, 3), (64, 65), (2100, 2101)])  # the last has more than one block
def test_they_equal_a_copy(size: tuple[int, int]) -> None:
    image = image_of(*size)
    np.testing.assert_array_equal(pixels_of(image)[..., :3], np.asarray(image))


def test_nothing_is_copied() -> None:
    if not image_memory._LENDS_MEMORY:
        pytest.skip("this Pillow lends no memory")
    image = image_of(4, 6)
    pixels = pixels_of(image)
    image.putpixel((5, 3), (9, 8, 7))
    assert pixels.shape == (4, 6, 4)
    assert pixels[3, 5, :3].tolist() == [9, 8, 7]


def test_they_outlive_the_image() -> None:
    image = image_of(300, 200)
    expected, pixels = np.array(image), pixels_of(image)
    del image
    gc.collect()
    others = [image_of(300, 200).rotate(90) for _ in range(8)]  # they would take the memory, were it free
    np.testing.assert_array_equal(pixels[..., :3], expected)
    assert len(others) == 8


def test_an_older_pillow_copies(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(image_memory, "_LENDS_MEMORY", False)
    assert pixels_of(image_of(4, 6)).shape == (4, 6, 3)


@pytest.mark.parametrize("mode", ["L", "RGBA", "I;16"])
def test_other_modes_are_refused(mode: str) -> None:
    with pytest.raises(ValueError, match="RGB is wanted"):
        pixels_of(Image.new(mode, (2, 2)))
