"""What a worker hands over at a time: a batch, or an error, with the records of what was skipped on the way."""

from __future__ import annotations

import pickle
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar, cast

import numpy as np
import torch
from torch import Tensor

from packloom.datasets.policy import ErrorPolicy, SkipRecord
from packloom.errors import PackloomError
from packloom.types import Batch


@dataclass(frozen=True, kw_only=True)
class Delivery:
    """With ``failure`` it is the worker's last. Without a batch it only reports."""

    batch: Batch | None = None
    num_filler_rows: int = 0  # rows of the batch that are no samples
    skips: list[SkipRecord] = field(default_factory=list)
    failure: PackloomError | None = None
    traceback: str = ""  # of the failure, since exceptions lose theirs on the way to another process
    seconds: Mapping[str, float] = field(default_factory=dict)  # stage → time spent in it since the last delivery
    waits: Mapping[int, int] = field(default_factory=dict)  # lane (of a stream: worker slot) → age of its oldest sample


@dataclass(frozen=True, kw_only=True)
class StreamDelivery(Delivery):
    """A delivery from an un-indexed stream."""

    epoch: int


@dataclass(frozen=True, kw_only=True)
class LaneDelivery(Delivery):
    """A delivery for one slot of a lane."""

    lane: int
    state: Mapping[str, Any]  # of the lane, after this slot
    has_next: bool = True  # whether the lane has a slot in the next round


#: Bytes of a tensor above which a copy costs more than memory to share.
_SMALL = 1 << 16
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
    """A small tensor that travels in the message itself: memory to share costs about 0.1 ms a tensor."""

    array: np.ndarray


def portable(delivery: _D) -> _D:
    """The delivery as it goes through a queue of processes.

    Small tensors stand in it as they are. A failure that does not pickle is replaced by one that does: the queue would
    drop it, and its reader would wait.
    """
    try:
        pickle.dumps(delivery.failure)
    except (pickle.PicklingError, TypeError, AttributeError):
        delivery = replace(delivery, failure=PackloomError(str(delivery.failure)))
    return _with_values(delivery, _inlined)


def received(delivery: _D) -> _D:
    """What ``portable`` was given, in the process that reads the queue."""
    return _with_values(delivery, _restored)


def _with_values(delivery: _D, change: Callable[[Any], Any]) -> _D:
    if delivery.batch is None:
        return delivery
    batch = {name: change(value) for name, value in delivery.batch.items()}
    return replace(delivery, batch=cast(Batch, batch))


def _inlined(value: Any) -> Any:
    if type(value) is not Tensor or value.layout is not torch.strided or value.dtype not in _NUMPY_TYPES:
        return value
    is_small = value.device.type == "cpu" and not value.requires_grad and value.nbytes <= _SMALL
    return _Inline(array=value.numpy()) if is_small else value


def _restored(value: Any) -> Any:
    return torch.from_numpy(value.array) if isinstance(value, _Inline) else value


def counts_by_code(policy: ErrorPolicy) -> Counter[str]:
    """What a policy has skipped so far, whatever the source."""
    counts = Counter[str]()
    for (_, code), number in policy.counts.items():
        counts[code] += number
    return counts


def no_good_samples(num_skipped: int, counts: Mapping[str, int]) -> str:
    """What to say when not one sample came through."""
    code = max(counts, key=lambda name: counts[name])
    return (
        f"all {num_skipped} samples that were read failed, most often with {code} ({counts[code]} times): mend the data"
        " or the settings (the quarantine file, if one is set, names each sample)"
    )
