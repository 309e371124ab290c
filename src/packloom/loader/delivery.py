"""What a worker hands over at a time: a batch, or an error, with the records of what was skipped on the way."""

from __future__ import annotations

import pickle
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

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


_D = TypeVar("_D", bound=Delivery)


def picklable(delivery: _D) -> _D:
    """The delivery, its failure replaced by one of the same text if it does not pickle."""
    try:
        pickle.dumps(delivery.failure)
    except (pickle.PicklingError, TypeError, AttributeError):
        return replace(delivery, failure=PackloomError(str(delivery.failure)))
    return delivery


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
