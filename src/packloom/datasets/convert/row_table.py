"""Whole numbers enter one after the other, a file of them leaves that is read from any place without being loaded."""

from __future__ import annotations

from array import array
from collections.abc import Iterable
from pathlib import Path
from typing import BinaryIO

import numpy as np

_BUFFER = 1 << 17
_DTYPE = np.dtype("<u8")


def write_numbers(path: Path, numbers: Iterable[int]) -> int:
    """Write the numbers as unsigned 64-bit, little-endian; returns how many there were."""
    path.parent.mkdir(parents=True, exist_ok=True)
    buffer, count = array("Q"), 0
    with path.open("wb") as file:
        for number in numbers:
            buffer.append(number)
            if len(buffer) >= _BUFFER:
                count += _flush(buffer, file)
        count += _flush(buffer, file)
    return count


def open_numbers(path: Path, width: int = 1) -> np.ndarray:
    """[N] uint64, or [N / width, width]; mapped, so that only what is looked at is read."""
    if path.stat().st_size == 0:
        return np.zeros((0, width) if width > 1 else 0, _DTYPE)
    numbers: np.ndarray = np.memmap(path, dtype=_DTYPE, mode="r")
    return numbers.reshape(-1, width) if width > 1 else numbers


def _flush(buffer: array[int], file: BinaryIO) -> int:
    count = len(buffer)
    file.write(np.array(buffer, dtype=_DTYPE).tobytes())
    del buffer[:]
    return count
