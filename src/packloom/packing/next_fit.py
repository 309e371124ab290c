"""Next-fit, the yardstick: samples go in by order of arrival, packs or their count come out."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from packloom.packing.contract import PackLimits
from packloom.packing.waiting import Waiting


class NextFit(NamedTuple):
    """Where next-fit stands: packs begun, what the last one holds, and the arrival of its first sample."""

    packs: int = 0
    tokens: int = 0
    patches: int = 0
    start: int = -1  # -1: no pack is open

    def add(self, sample: Waiting, limits: PackLimits, max_wait: int) -> NextFit:
        """The state after ``sample``; a pack is closed once its first sample has seen ``max_wait`` later ones."""
        tokens, patches = self.tokens + sample.tokens, self.patches + sample.patches
        is_open = self.start >= 0 and sample.arrival - self.start <= max_wait
        if is_open and limits.admit(tokens, patches):
            return NextFit(self.packs, tokens, patches, self.start)
        return NextFit(self.packs + 1, sample.tokens, sample.patches, sample.arrival)

    def is_no_worse_than(self, other: NextFit) -> bool:
        """Whether, on any continuation of both streams, this one never needs more packs than the other."""
        if self.packs != other.packs:
            return self.packs < other.packs
        return self.tokens <= other.tokens and self.patches <= other.patches and self.start >= other.start


def next_fit_packs(samples: Iterable[Waiting], limits: PackLimits, max_wait: int) -> list[list[Waiting]]:
    """The packs that next-fit makes."""
    state, packs = NextFit(), list[list[Waiting]]()
    for sample in samples:
        before, state = state, state.add(sample, limits, max_wait)
        if state.packs > before.packs:
            packs.append([])
        packs[-1].append(sample)
    return packs
