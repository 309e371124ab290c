"""A JSON header and named arrays of whole numbers enter, one checked file leaves, and the other way round.

Layout, all little-endian: 8 bytes magic, u64 length of the header, u64 CRC-32 of all but magic and itself, the header
(UTF-8 JSON, spaces at its end so that what is behind it starts at a multiple of 64), then the arrays one after the
other, each at a multiple of 8. The header's ``"arrays"`` maps a name to ``[dtype, items, byte offset behind the
header]``. A reader may map the file into memory: nothing has to be parsed but the header. No pickle, no code.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Mapping
from typing import Any

import numpy as np

from packloom.errors import ShardError

MAGIC = b"PLOOMIX\x01"
_PREFIX = 24
_DTYPES = {name: np.dtype(name) for name in ("|u1", "<u2", "<u4", "<u8")}


def pack_table(header: Mapping[str, Any], arrays: Mapping[str, np.ndarray]) -> bytes:
    """The bytes of a file. Arrays are 1-D and not negative; each is stored in the smallest type that holds it."""
    body = bytearray()
    places: dict[str, list[Any]] = {}
    for name, array in arrays.items():
        stored = _narrow(array)
        places[name] = [stored.dtype.str, len(stored), len(body)]
        body += stored.tobytes()
        body += bytes(-len(body) % 8)
    text = json.dumps({**header, "arrays": places}).encode()
    text += b" " * (-(_PREFIX + len(text)) % 64)
    length, rest = len(text).to_bytes(8, "little"), text + body
    return MAGIC + length + zlib.crc32(rest, zlib.crc32(length)).to_bytes(8, "little") + rest


def unpack_table(data: bytes, *, where: str) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """The header and the arrays, which are views into ``data``. Raises ShardError for anything but a whole file."""
    if data[: len(MAGIC)] != MAGIC:
        raise ShardError(f"{where} is not an index file of this version of packloom")
    start = _PREFIX + int.from_bytes(data[8:16], "little")
    if zlib.crc32(memoryview(data)[_PREFIX:], zlib.crc32(data[8:16])) != int.from_bytes(data[16:_PREFIX], "little"):
        raise ShardError(f"{where} is damaged or cut off: its checksum differs")
    try:
        header = json.loads(data[_PREFIX:start])
        arrays = {
            name: np.frombuffer(data, dtype=_DTYPES[dtype], count=items, offset=start + offset)
            for name, (dtype, items, offset) in header["arrays"].items()
        }
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise ShardError(f"{where} is damaged: {type(error).__name__}: {error}") from error
    return header, arrays


def _narrow(array: np.ndarray) -> np.ndarray:
    most = int(array.max()) if len(array) else 0
    return array.astype(np.min_scalar_type(most).newbyteorder("<"))
