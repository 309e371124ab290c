"""Pixels and a size in; pixels, resized exactly as torchvision resizes bytes, and their planes out.

No torchvision is needed. How pixels lie in memory decides the time, not the values: torch's filter for bytes works on
pixels whose channels lie together, and to write planes takes it longer than the resize itself.
"""

from __future__ import annotations

import platform
from collections.abc import Callable
from typing import Literal

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

#: ([H, W, 3 or 4] uint8, height, width) → [height, width, 3 or 4] uint8; a fourth channel means nothing
PixelResize = Callable[[np.ndarray, int, int], np.ndarray]
Mode = Literal["bilinear", "bicubic", "lanczos"]


def resize_pixels(pixels: np.ndarray, height: int, width: int, *, mode: Mode) -> np.ndarray:
    """[H, W, C] uint8 → [height, width, C], as ``resize`` of torchvision.transforms.v2.functional with antialias."""
    if pixels.shape[:2] == (height, width):
        return pixels
    batch = _as_batch(pixels)
    if mode == "bilinear" and not _has_native_bilinear():
        made = _interpolated(batch.float(), height, width, mode).round_().to(torch.uint8)
    else:
        made = _interpolated(batch, height, width, mode)
    return made[0].permute(1, 2, 0).numpy()


def planes_of(pixels: np.ndarray) -> np.ndarray:
    """[H, W, 3 or 4] uint8 → [3, H, W]; a fourth channel is left out."""
    if pixels.shape[2] == 3:
        return np.ascontiguousarray(pixels.transpose(2, 0, 1))
    numbers = as_numbers(pixels)
    planes = np.empty((3, *numbers.shape), np.uint8)
    for channel, plane in enumerate(planes):
        np.copyto(plane, numbers >> (8 * channel), casting="unsafe")
    return planes


def as_numbers(pixels: np.ndarray) -> np.ndarray:
    """[H, W, 3 or 4] uint8 → [H, W] uint32, the first channel lowest, what is above the third means nothing.

    NumPy moves, shifts and narrows numbers several at a time, but takes single bytes out of pixels one by one. Pixels
    of four bytes are not copied.
    """
    if pixels.shape[2] == 3:
        widened = np.empty((*pixels.shape[:2], 4), np.uint8)
        for channel in range(3):
            widened[..., channel] = pixels[..., channel]
        pixels = widened
    return np.ascontiguousarray(pixels).view("<u4")[..., 0]


def has_lanczos() -> bool:
    """Whether this torch has the filter."""
    try:
        _interpolated(_as_batch(np.zeros((8, 8, 3), np.uint8)), 4, 4, "lanczos")
    except (NotImplementedError, RuntimeError, ValueError):
        return False
    return True


def _as_batch(pixels: np.ndarray) -> Tensor:
    """[1, C, H, W], the memory as it is and with strides by which torch sees that channels lie together.

    ``permute(...)[None]`` gives the batch a stride of its own making, and with it torch writes planes.
    """
    height, width, channels = pixels.shape
    pixels = np.ascontiguousarray(pixels)
    size = (1, channels, height, width)
    return torch.from_numpy(pixels).as_strided(size, (pixels.size, 1, width * channels, channels))


def _interpolated(batch: Tensor, height: int, width: int, mode: Mode) -> Tensor:
    return functional.interpolate(batch, size=(height, width), mode=mode, antialias=True)


def _has_native_bilinear() -> bool:
    """Whether torchvision trusts torch's bilinear resize of bytes on this processor."""
    return torch.backends.cpu.get_cpu_capability() in ("AVX2", "AVX512") or platform.machine() in ("aarch64", "arm64")
