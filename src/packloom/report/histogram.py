"""Numbers go in; a histogram with round edges, as data and as lines of text, comes out."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

_BLOCKS = " ▏▎▍▌▋▊▉█"
_STEPS = (1, 2, 2.5, 5, 10)


@dataclass(frozen=True, kw_only=True)
class Histogram:
    """``counts[i]`` values lie in ``edges[i] <= value < edges[i + 1]``."""

    edges: tuple[float, ...]
    counts: tuple[int, ...]

    def as_dict(self) -> dict[str, Any]:
        """Plain data for ``--json``."""
        return {"edges": list(self.edges), "counts": list(self.counts)}

    def lines(self, *, width: int = 40) -> list[str]:
        """One line per bin: its range, a bar, its count."""
        labels = [f"{_short(low)} – {_short(high)}" for low, high in zip(self.edges, self.edges[1:], strict=False)]
        longest, most = max(map(len, labels), default=0), max(self.counts, default=0) or 1
        return [
            f"{label:>{longest}} {_bar(count / most, width):<{width}} {count:,}"
            for label, count in zip(labels, self.counts, strict=True)
        ]


def histogram(values: Sequence[float] | np.ndarray, *, max_bins: int = 12) -> Histogram:
    """At most ``max_bins`` bins of equal width with round edges; empty for no values."""
    found = np.asarray(values, dtype=np.float64)
    if not found.size:
        return Histogram(edges=(), counts=())
    low, high = float(found.min()), float(found.max())
    step = _round_step((high - low) / max_bins, whole=bool((found == np.round(found)).all()))
    start = math.floor(low / step)
    places = np.floor(found / step).astype(np.int64) - start
    counts = np.bincount(places)
    edges = tuple(_plain((start + place) * step) for place in range(len(counts) + 1))
    return Histogram(edges=edges, counts=tuple(counts.tolist()))


def _round_step(least: float, *, whole: bool) -> float:
    """The smallest round number that is larger; of whole numbers at least 1 and whole."""
    if least <= 0:
        return 1.0 if whole else 0.1
    power = 10.0 ** math.floor(math.log10(least))
    step = next(power * factor for factor in (*_STEPS, 20) if power * factor > least)
    return max(1.0, float(math.ceil(step))) if whole else step


def _bar(share: float, width: int) -> str:
    eighths = round(share * width * 8)
    if share > 0:
        eighths = max(1, eighths)
    return "█" * (eighths // 8) + (_BLOCKS[eighths % 8] if eighths % 8 else "")


def _plain(value: float) -> float:
    return int(value) if value == int(value) else round(value, 10)


def _short(value: float) -> str:
    return f"{value:,}"
