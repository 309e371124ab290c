"""A dtype and a shape go in; an empty tensor comes out, in memory that a worker hands over without moving it.

The first touch of shared memory that is new to a process costs several times a copy: the kernel zeroes and maps each
page. So the workers of packloom's own loaders keep what they shared, and use it again once the main process read it.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import struct
import weakref
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import get_worker_info

#: Bytes before a segment's content: the number of times that the main process has read it.
HEADER = 64
_COUNT = struct.Struct("<Q")
_pool: SegmentPool | None = None


class Segment:
    """A piece of shared memory of a worker, of which one tensor at a time is made.

    It is free when that tensor is gone in this process, and what was sent of it has been read in the other one.
    """

    def __init__(self, number: int, num_bytes: int) -> None:
        self.number = number
        self.capacity = num_bytes
        # no file of a file system: containers often have a small /dev/shm
        self.descriptor = os.memfd_create(f"packloom-{number}")
        os.ftruncate(self.descriptor, HEADER + num_bytes)
        self._memory = mmap.mmap(self.descriptor, HEADER + num_bytes)
        self._lent: weakref.ref[Any] | None = None
        self.num_sent = 0
        self.address = self.lend(num_bytes).data_ptr()

    def __del__(self) -> None:
        os.close(self.descriptor)

    @property
    def is_free(self) -> bool:
        lent = self._lent is not None and self._lent() is not None
        return not lent and _COUNT.unpack_from(self._memory)[0] == self.num_sent

    def lend(self, num_bytes: int) -> Tensor:
        """[num_bytes] uint8, of unknown values."""
        # torch keeps this object for as long as any tensor uses the memory
        owner = (ctypes.c_uint8 * num_bytes).from_buffer(self._memory, HEADER)
        self._lent = weakref.ref(owner)
        return torch.frombuffer(owner, dtype=torch.uint8)


class SegmentPool:
    """The segments of a worker process, as many as are on their way at a time."""

    def __init__(self) -> None:
        self._segments: dict[int, Segment] = {}  # by address
        self._num_made = 0
        self._gone: list[int] = []

    def room(self, num_bytes: int) -> Tensor:
        """[num_bytes] uint8 of shared memory, of unknown values."""
        free = [segment for segment in self._segments.values() if segment.is_free]
        fitting = [segment for segment in free if segment.capacity >= num_bytes]
        if fitting:
            return min(fitting, key=lambda segment: segment.capacity).lend(num_bytes)
        if free:  # it is too small, and would lie idle
            self._drop(max(free, key=lambda segment: segment.capacity))
        segment = Segment(self._num_made, _rounded(num_bytes))
        self._num_made += 1
        self._segments[segment.address] = segment
        return segment.lend(num_bytes)

    def segment_of(self, tensor: Tensor) -> Segment | None:
        """The segment that a tensor lies in."""
        return self._segments.get(tensor.untyped_storage().data_ptr())

    def take_gone(self) -> list[int]:
        """The numbers of the segments that were given up since the last call."""
        gone, self._gone = self._gone, []
        return gone

    def _drop(self, segment: Segment) -> None:
        del self._segments[segment.address]
        self._gone.append(segment.number)


def _rounded(num_bytes: int) -> int:
    """Up by an eighth at most: the batches after this one are seldom of its size."""
    step = max(1 << 12, 1 << max(0, num_bytes.bit_length() - 4))
    return -(-num_bytes // step) * step


def count_reading(memory: mmap.mmap) -> None:
    """In the main process: tell the worker that its segment has been read once more."""
    _COUNT.pack_into(memory, 0, _COUNT.unpack_from(memory)[0] + 1)


def open_pool() -> None:
    """From now on this process hands over through segments: call it in a worker whose messages ``Receiver`` reads."""
    global _pool
    if hasattr(os, "memfd_create"):
        _pool = SegmentPool()


def current_pool() -> SegmentPool | None:
    """That of this process; None outside of the workers of packloom's loaders, and where the system has no memfd."""
    return _pool


def hand_over_room(shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    """Uninitialised [*shape]; in a worker of a DataLoader its memory is shared, elsewhere it is ordinary memory.

    A worker's queue moves every tensor into shared memory, unless it is there already.
    """
    num_bytes = torch.empty(shape, dtype=dtype, device="meta").nbytes
    if _pool is not None and num_bytes:
        return _pool.room(num_bytes).view(dtype).view(shape)
    if get_worker_info() is None:
        return torch.empty(shape, dtype=dtype)
    # as torch's own default_collate does
    storage = torch.UntypedStorage._new_shared(num_bytes)  # type: ignore[no-untyped-call]
    return torch.empty(0, dtype=dtype).set_(storage).view(shape)
