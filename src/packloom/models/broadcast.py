"""One rank's batches go in; the same batches come out on every rank of its tensor-parallel group.

A batch travels as its header (names, shapes, kinds, and the values that are no tensors, as JSON) and one flat buffer
per dtype: two messages and one more per dtype, whatever the number of fields.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from packloom.errors import BatchError, ConfigError, WorkerError

_BATCH, _END, _FAILED = 0, 1, 2


class BroadcastIterator(Iterator[dict[str, Any]]):
    """Batches that the first rank of ``group`` reads, on all its ranks; an iterator for ``forward_step``.

    Only the first rank needs ``batches`` (an iterator); the others pass None. All ranks of the group must take the
    batches in step. The end of the data, and an error while reading, reach all ranks: no rank waits for ever. Tensors
    arrive on ``device``: by default the CPU, and the current CUDA device for a group that speaks NCCL alone.

    The other way is that every rank reads by itself: with the same ``dp_rank`` their loaders give identical batches.
    """

    def __init__(
        self,
        batches: Iterator[Mapping[str, Any]] | None,
        *,
        group: Any | None = None,
        device: torch.device | str | None = None,
    ) -> None:
        """Raises ConfigError where no process group is initialised, and on a first rank without an iterator."""
        if not (dist.is_available() and dist.is_initialized()):
            raise ConfigError("broadcasting needs torch.distributed.init_process_group; a lone rank reads by itself")
        self._source = dist.get_process_group_ranks(group or dist.group.WORLD)[0]
        self._reads = dist.get_rank() == self._source
        self._batches, self._group = batches, group
        self._device = torch.device(device) if device is not None else _default_device(group)
        if self._reads and not isinstance(batches, Iterator):
            raise ConfigError(f"the first rank of the group reads the batches: pass iter(loader), got {batches!r}")

    def __next__(self) -> dict[str, Any]:
        """Raises StopIteration at the end; on the reading rank its own error, and WorkerError on the others."""
        if not self._reads:
            return self._receive()
        try:
            batch = next(self._batches)  # type: ignore[arg-type]  # checked above
            entries, fields = _describe(batch)
        except StopIteration:
            self._announce(_END, b"")
            raise
        except BaseException as error:  # also an interrupt: the peers wait in a collective
            self._announce(_FAILED, f"{type(error).__name__}: {error}".encode())
            raise
        self._announce(_BATCH, json.dumps(entries).encode())
        for flat in _flatten(fields).values():
            self._send(flat)
        return dict(batch)

    def _announce(self, kind: int, header: bytes) -> None:
        self._send(torch.tensor([kind, len(header)]))
        if header:
            self._send(torch.frombuffer(bytearray(header), dtype=torch.uint8))

    def _send(self, tensor: Tensor) -> None:
        if tensor.numel():
            dist.broadcast(tensor.to(self._device), src=self._source, group=self._group)

    def _receive(self) -> dict[str, Any]:
        kind, size = self._get(2, torch.int64).tolist()
        header = self._get(size, torch.uint8).cpu().numpy().tobytes() if size else b""
        if kind == _END:
            raise StopIteration
        if kind == _FAILED:
            raise WorkerError(f"rank {self._source}, which reads for this group, failed: {header.decode()}")
        return self._rebuild(json.loads(header))

    def _get(self, size: int, dtype: torch.dtype) -> Tensor:
        buffer = torch.empty(size, dtype=dtype, device=self._device)
        if size:
            dist.broadcast(buffer, src=self._source, group=self._group)
        return buffer

    def _rebuild(self, entries: dict[str, Any]) -> dict[str, Any]:
        shapes: dict[str, list[list[int]]] = {}
        for dtype, shape in entries["tensors"]:
            shapes.setdefault(dtype, []).append(shape)
        tensors: dict[str, list[Tensor]] = {}
        for dtype in sorted(shapes):
            kind = getattr(torch, dtype)
            sizes = [math.prod(shape) for shape in shapes[dtype]]
            flat = self._get(sum(sizes) * kind.itemsize, torch.uint8).view(kind)
            tensors[dtype] = [
                part.view(shape) for part, shape in zip(torch.split(flat, sizes), shapes[dtype], strict=True)
            ]
        order = [tensors[dtype].pop(0) for dtype, _ in entries["tensors"]]
        fields = entries["fields"]
        return {name: order[value] if is_tensor else value for name, is_tensor, value in fields}


def _describe(batch: Mapping[str, Any]) -> tuple[dict[str, Any], list[Tensor]]:
    """The header, and the tensors without those that are one object under two names (cu_seqlens_q and _kv)."""
    tensors: dict[int, int] = {}
    distinct: list[Tensor] = []
    fields: list[tuple[str, bool, Any]] = []
    for name, value in batch.items():
        if not isinstance(value, Tensor):
            fields.append((name, False, _plain(name, value)))
            continue
        if id(value) not in tensors:
            tensors[id(value)] = len(distinct)
            distinct.append(value)
        fields.append((name, True, tensors[id(value)]))
    kinds = [(str(tensor.dtype).removeprefix("torch."), list(tensor.shape)) for tensor in distinct]
    return {"tensors": kinds, "fields": fields}, distinct


def _plain(name: str, value: Any) -> Any:
    if json.loads(json.dumps(value, default=repr)) != value:
        raise BatchError(f"{name} is no tensor and no plain JSON value, so it cannot be sent: {value!r}")
    return value


def _flatten(tensors: list[Tensor]) -> dict[str, Tensor]:
    """dtype → the bytes of all tensors of that dtype; as bytes, since no backend sends every dtype."""
    groups: dict[str, list[Tensor]] = {}
    for tensor in tensors:
        groups.setdefault(str(tensor.dtype).removeprefix("torch."), []).append(tensor.contiguous().flatten())
    return {dtype: torch.cat(groups[dtype]).view(torch.uint8) for dtype in sorted(groups)}


def _default_device(group: Any | None) -> torch.device:
    if any(name in str(dist.get_backend(group)) for name in ("gloo", "mpi", "cpu")):
        return torch.device("cpu")
    return torch.device("cuda", torch.cuda.current_device())
