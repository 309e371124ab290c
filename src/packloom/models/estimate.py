"""A loader goes in; how many optimiser steps an epoch of it takes comes out, exact or with its uncertainty."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from packloom.errors import ConfigError


@dataclass(frozen=True, kw_only=True)
class StepEstimate:
    """Steps of one rank; every rank takes as many."""

    steps: int
    exact: bool  # the data ended before the estimate stood still
    spread: float  # (largest - smallest) / mean of the last estimates
    batches_seen: int
    samples_seen: int  # those that were skipped included


def estimate_steps(
    loader: Iterable[Mapping[str, Any]],
    *,
    total_samples: int,
    dp_size: int = 1,
    accumulation: int = 1,
    tolerance: float = 0.01,
    window: int = 100,
) -> StepEstimate:
    """Optimiser steps of one pass over ``total_samples`` samples on ``dp_size`` ranks, ``accumulation`` batches each.

    Reads batches until the last ``window`` estimates differ by less than ``tolerance``, or to the end, when the count
    is exact. How many samples share a pack is only known from packs; samples that the loader skips (its ``skipped``)
    count as read, so they do not raise the estimate. Use a loader of its own, since this one is read.

    Raises ConfigError for settings without meaning, for a loader without batches, and for one that gives more than
    twice its share of samples: an endless loader would never end here.
    """
    for name, value in {"total_samples": total_samples, "dp_size": dp_size, "accumulation": accumulation}.items():
        if value < 1:
            raise ConfigError(f"{name} must be positive, got {value}")
    own_share = math.ceil(total_samples / dp_size)
    recent: deque[float] = deque(maxlen=window)
    batches = good = 0
    for batch in loader:
        batches += 1
        good += batch["source_sample_num"]
        seen = good + _skipped(loader)
        if seen > 2 * own_share:
            raise ConfigError(
                f"the loader gave {seen} samples and goes on, total_samples = {total_samples} on {dp_size} rank(s)"
                f" means {own_share}: build it with epochs=1, and the same dp_size, or correct total_samples"
            )
        recent.append(own_share * batches / max(seen, 1))
        if seen < own_share and len(recent) == window and _spread(recent) <= tolerance:
            steps = math.ceil(recent[-1] / accumulation)
            return StepEstimate(
                steps=steps, exact=False, spread=_spread(recent), batches_seen=batches, samples_seen=seen
            )
    if not batches:
        raise ConfigError("the loader gave no batch, so nothing can be estimated")
    steps = math.ceil(batches / accumulation)
    return StepEstimate(steps=steps, exact=True, spread=0.0, batches_seen=batches, samples_seen=good + _skipped(loader))


def _skipped(loader: Any) -> int:
    """Samples that a packloom loader skipped; other iterables of batches skip none."""
    return int(sum(getattr(loader, "skipped", {}).values()))


def _spread(values: deque[float]) -> float:
    return (max(values) - min(values)) / (sum(values) / len(values))
