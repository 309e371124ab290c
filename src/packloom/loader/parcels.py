"""Deliveries go in at a worker; they come out in the main process, their tensors in memory of its own.

Large tensors travel in segments of shared memory that the worker uses again (see ``packloom.rooms``), so a batch is
copied once, and the worker waits for nothing. What a user keeps of a batch never lies in a segment.
"""

from __future__ import annotations

import math
import mmap
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from multiprocessing.reduction import DupFd
from typing import Any, Generic, TypeVar, cast

import numpy as np
import torch
from torch import Tensor

from packloom.errors import WorkerError
from packloom.loader.delivery import Delivery, picklable
from packloom.rooms import HEADER, Segment, SegmentPool, count_reading, current_pool
from packloom.types import Batch

#: Bytes of a tensor up to which it travels in the message itself.
_SMALL = 1 << 16
_ALIGNMENT = 64
_NUMPY_TYPES = frozenset(
    (
        torch.bool,
        torch.uint8,
        torch.int8,
        torch.int16,
        torch.int32,
        torch.int64,
        torch.float16,
        torch.float32,
        torch.float64,
    )
)

_D = TypeVar("_D", bound=Delivery)


@dataclass(frozen=True, kw_only=True, slots=True)
class _Inline:
    """A small tensor that travels in the message itself."""

    array: np.ndarray


@dataclass(frozen=True, kw_only=True, slots=True)
class _Lying:
    """A tensor that lies in a segment."""

    segment: int
    start: int  # in bytes, behind the header
    shape: tuple[int, ...]
    dtype: torch.dtype


class _Memory:
    """The memory of a segment on its way to the main process, where ``detach`` gives a descriptor of it."""

    def __init__(self, segment: Segment) -> None:
        self._segment = segment

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        made: Any = DupFd(self._segment.descriptor)
        return _same, (made,)


def _same(value: Any) -> Any:
    return value


@dataclass(frozen=True, kw_only=True)
class Parcel(Generic[_D]):
    """A delivery whose tensors travel beside it; ``segments`` are the numbers of those to be read."""

    delivery: _D
    worker: int
    segments: Sequence[int] = ()
    opened: Mapping[int, Any] = field(default_factory=dict)  # number → memory, of those that travel for the first time
    gone: Sequence[int] = ()  # that will not be used again


def pack(delivery: _D, worker: int) -> Parcel[_D]:
    """The delivery as it goes through a queue of processes.

    Its failure is made one that pickles: the queue would drop it, and its reader would wait.
    """
    delivery = picklable(delivery)
    pool = current_pool()
    if delivery.batch is None:
        return Parcel(delivery=delivery, worker=worker, gone=pool.take_gone() if pool else ())
    values = {name: _inlined(value) for name, value in delivery.batch.items()}
    if pool is None:
        return Parcel(delivery=_with_batch(delivery, values), worker=worker)
    segments = _move(values, pool)
    opened = {segment.number: _Memory(segment) for segment in segments.values() if not segment.num_sent}
    for segment in segments.values():
        segment.num_sent += 1
    return Parcel(
        delivery=_with_batch(delivery, values),
        worker=worker,
        segments=tuple(segments),
        opened=opened,
        gone=pool.take_gone(),
    )


def _move(values: dict[str, Any], pool: SegmentPool) -> dict[int, Segment]:
    """Put handles in the place of large tensors; returns the segments that they lie in."""
    outside = {
        name: value
        for name, value in values.items()
        if _is_plain(value) and (pool.segment_of(value) is None or not value.is_contiguous())
    }
    starts, end = {}, 0
    for name, value in outside.items():
        starts[name] = end
        end += -(-value.nbytes // _ALIGNMENT) * _ALIGNMENT
    room = pool.room(end) if end else torch.empty(0)
    for name, start in starts.items():
        value = outside[name]
        values[name] = room[start : start + value.nbytes].view(value.dtype).view(value.shape).copy_(value)
    segments = {}
    for name, value in values.items():
        segment = pool.segment_of(value) if _is_plain(value) else None
        if segment is not None:
            segments[segment.number] = segment
            start = int(value.storage_offset()) * value.element_size()
            values[name] = _Lying(segment=segment.number, start=start, shape=tuple(value.shape), dtype=value.dtype)
    return segments


def _is_plain(value: Any) -> bool:
    """Whether its bytes are all there is to it."""
    if type(value) is not Tensor or value.layout is not torch.strided or value.device.type != "cpu":
        return False
    return not value.requires_grad and value.nbytes > 0


def _inlined(value: Any) -> Any:
    if type(value) is Tensor:  # as it is sent, torch forgets that a tensor is a view with other signs
        value = value.resolve_conj().resolve_neg()
    if not _is_plain(value) or value.dtype not in _NUMPY_TYPES or value.nbytes > _SMALL:
        return value
    return _Inline(array=value.numpy())


class Receiver:
    """Unpacks the parcels of all workers of one iteration, each worker's in the order in which it packed them."""

    def __init__(self) -> None:
        self._memories: dict[tuple[int, int], mmap.mmap] = {}

    def unpack(self, parcel: Parcel[_D]) -> _D:
        """The delivery as it was; raises WorkerError for memory that never arrived, OSError if its worker is dead."""
        worker = parcel.worker
        for number, memory in parcel.opened.items():
            self._memories[worker, number] = _mapped(memory.detach())
        delivery = self._with_tensors(parcel) if parcel.delivery.batch is not None else parcel.delivery
        for number in parcel.segments:
            count_reading(self._memories[worker, number])
        for number in parcel.gone:
            self._memories.pop((worker, number), None)
        return delivery

    def _with_tensors(self, parcel: Parcel[_D]) -> _D:
        batch = cast(Batch, parcel.delivery.batch)
        values = {name: self._restored(parcel.worker, value) for name, value in batch.items()}
        return _with_batch(parcel.delivery, values)

    def _restored(self, worker: int, value: Any) -> Any:
        if isinstance(value, _Inline):
            return torch.from_numpy(value.array)
        return self._copied(worker, value) if isinstance(value, _Lying) else value

    def _copied(self, worker: int, place: _Lying) -> Tensor:
        memory = self._memories.get((worker, place.segment))
        if memory is None:
            raise WorkerError(
                f"memory {place.segment} of worker {worker} did not arrive, though a later batch needs it"
            )
        there = torch.frombuffer(
            memory, dtype=place.dtype, count=math.prod(place.shape), offset=HEADER + place.start
        ).view(place.shape)
        # the device copies from pinned memory without waiting; to pin starts CUDA, so only where it runs already
        return torch.empty(place.shape, dtype=place.dtype, pin_memory=_is_cuda_up()).copy_(there)


def _is_cuda_up() -> bool:
    return bool(torch.cuda.is_initialized())  # type: ignore[no-untyped-call]


def _mapped(descriptor: int) -> mmap.mmap:
    try:
        return mmap.mmap(descriptor, 0)
    finally:
        os.close(descriptor)


def _with_batch(delivery: _D, values: Mapping[str, Any]) -> _D:
    return replace(delivery, batch=cast(Batch, values))
