"""A decoded RGB image goes in; its pixels as an array, in Pillow's own memory where that can be had, come out.

Pillow keeps RGB pixels four bytes apart and lends them through the Arrow C data interface (since 11.2). A copy of a
photograph costs about as much as its resize.
"""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np
from PIL import Image

_LENDS_MEMORY = hasattr(Image.Image, "__arrow_c_array__")


def pixels_of(image: Image.Image) -> np.ndarray:
    """[H, W, 3 or 4] uint8, red, green and blue first; a fourth channel means nothing. To be read only.

    Raises ValueError for another mode than RGB.
    """
    if image.mode != "RGB":
        raise ValueError(f"an image of mode {image.mode}, RGB is wanted")
    try:
        lent = image.__arrow_c_array__() if _LENDS_MEMORY else None
    except ValueError:  # an image so large that Pillow keeps it in several pieces
        lent = None
    return np.array(image) if lent is None else _as_array(lent, image.height, image.width)


def _as_array(lent: tuple[Any, Any], height: int, width: int) -> np.ndarray:
    """The array lives as long as what Pillow lent."""
    pixels = _ArrowArray.from_address(_address(lent[1], b"arrow_array")).children[0].contents
    size = height * width * 4
    if pixels.length != size or pixels.offset:
        raise RuntimeError(f"Pillow lends {pixels.length} bytes from {pixels.offset} for an image of {size}")
    memory = (ctypes.c_uint8 * size).from_address(pixels.buffers[1])
    memory.owner = lent  # type: ignore[attr-defined]  # a ctypes object may carry what it needs alive
    return np.frombuffer(memoryview(memory), dtype=np.uint8).reshape(height, width, 4)


class _ArrowArray(ctypes.Structure):
    """Source: struct ArrowArray of the Arrow C data interface, a stable ABI."""


_ArrowArray._fields_ = [
    ("length", ctypes.c_int64),
    ("null_count", ctypes.c_int64),
    ("offset", ctypes.c_int64),
    ("n_buffers", ctypes.c_int64),
    ("n_children", ctypes.c_int64),
    ("buffers", ctypes.POINTER(ctypes.c_void_p)),
    ("children", ctypes.POINTER(ctypes.POINTER(_ArrowArray))),
    ("dictionary", ctypes.c_void_p),
    ("release", ctypes.c_void_p),
    ("private_data", ctypes.c_void_p),
]

_address = ctypes.pythonapi.PyCapsule_GetPointer
_address.restype = ctypes.c_void_p
_address.argtypes = [ctypes.py_object, ctypes.c_char_p]
