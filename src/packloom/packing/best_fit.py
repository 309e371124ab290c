"""The built-in streaming packer: each pack is the oldest waiting sample and the set of others that fits it best."""

from __future__ import annotations

from typing import Any

import numpy as np

from packloom.errors import ConfigError
from packloom.packing.contract import Cost, PackLimits
from packloom.packing.next_fit import NextFit, next_fit_packs
from packloom.packing.waiting import Waiting, WaitingRoom

_UNREACHED = np.iinfo(np.int64).max // 2  # patches of a token sum that no subset has; halved so that adding is safe


class BestFitPacker:
    """Fills each pack with the oldest waiting sample and the set of other waiting samples that fits it best.

    Samples wait uncommitted until their pack leaves. One leaves when more than ``open_packs`` packs' worth of samples
    wait, or more than ``buffer_size`` samples that are more than one pack's worth, or when the oldest has seen
    ``max_wait`` later ones. It takes the set with most tokens within both limits (an exact subset-sum search over
    ``buffer_size`` samples at a time, oldest first; ties go to fewer patches, then to older samples), and holds it
    in order of arrival.

    On every stream it needs no more packs than next-fit with the same limits and ``max_wait``: it counts next-fit's
    packs along, and where its choice could fall behind it begins the pack with all that next-fit would put there
    (next-fit on fewer samples never needs more packs).
    """

    def __init__(
        self, limits: PackLimits, *, open_packs: int = 16, buffer_size: int = 64, max_wait: int = 2000
    ) -> None:
        settings = {"open_packs": open_packs, "buffer_size": buffer_size, "max_wait": max_wait}
        if open_packs < 1 or buffer_size < 0 or max_wait < 1:
            raise ConfigError(f"open_packs and max_wait must be at least 1, buffer_size at least 0, got {settings}")
        self._open_packs = open_packs
        self._buffer_size = buffer_size
        self._max_wait = max_wait
        self._room = WaitingRoom(limits, settings)
        self._emitted = 0
        self._next_fit = NextFit()

    def push(self, index: int, cost: Cost) -> list[list[int]]:
        sample = self._room.add(index, cost)
        self._next_fit = self._next_fit.add(sample, self._room.limits, self._max_wait)
        packs = []
        while self._must_emit():
            packs.append(self._emit())
        return packs

    def finish(self) -> list[list[int]]:
        packs = []
        while self._room.samples:
            packs.append(self._emit())
        self._room.pushed, self._emitted, self._next_fit = 0, 0, NextFit()
        return packs

    def state_dict(self) -> dict[str, Any]:
        return {**self._room.state_dict(), "emitted": self._emitted, "next_fit": list(self._next_fit)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._room.load_state_dict(state)
        self._emitted, self._next_fit = state["emitted"], NextFit(*state["next_fit"])

    def _must_emit(self) -> bool:
        room = self._room
        if room.oldest_age() >= self._max_wait or room.exceeds(self._open_packs):
            return True
        return len(room.samples) > self._buffer_size and room.exceeds(1)

    def _emit(self) -> list[int]:
        waiting = list(self._room.samples.values())
        pack, rest = self._filled(waiting, 1)
        if rest and not self._keeps_up(rest):
            first = next_fit_packs(waiting, self._room.limits, self._max_wait)[0]
            pack, _ = self._filled(waiting, len(first))
        self._emitted += 1
        return [self._room.pop(sample.ident).ident for sample in pack]

    def _filled(self, waiting: list[Waiting], num_first: int) -> tuple[list[Waiting], list[Waiting]]:
        """The pack that begins with the first ``num_first``, best filled from the others; and those left over."""
        pack, others, rest = waiting[:num_first], waiting[num_first:], list[Waiting]()
        step = max(1, self._buffer_size)
        for batch in (others[start : start + step] for start in range(0, len(others), step)):
            chosen = best_subset(batch, pack, self._room.limits)
            pack += [sample for position, sample in enumerate(batch) if position in chosen]
            rest += [sample for position, sample in enumerate(batch) if position not in chosen]
        return pack, rest

    def _keeps_up(self, rest: list[Waiting]) -> bool:
        """Whether next-fit, continued on ``rest`` after this pack, is no worse than next-fit on the whole stream."""
        state = NextFit(packs=self._emitted + 1)
        for sample in rest:
            state = state.add(sample, self._room.limits, self._max_wait)
        return state.is_no_worse_than(self._next_fit)


def best_subset(batch: list[Waiting], pack: list[Waiting], limits: PackLimits) -> set[int]:
    """Positions in ``batch`` of the samples that together fill ``pack`` best: an exact 0/1 knapsack with two limits.

    ``fewest[n]`` is the least number of patches with which some subset has exactly ``n`` tokens. The search ends at
    the first perfect fill.
    """
    tokens = limits.tokens - sum(sample.tokens for sample in pack)
    patches = _UNREACHED - 1 if limits.patches is None else limits.patches - sum(sample.patches for sample in pack)
    fitting = [p for p, sample in enumerate(batch) if sample.tokens <= tokens and sample.patches <= patches]
    if sum(batch[p].tokens for p in fitting) <= tokens and sum(batch[p].patches for p in fitting) <= patches:
        return set(fitting)
    fewest = np.full(tokens + 1, _UNREACHED, dtype=np.int64)
    fewest[0] = 0
    gains = list[np.ndarray[Any, np.dtype[np.bool_]]]()  # per sample: the sums that it reaches with fewer patches
    for position in fitting:
        reached = fewest[batch[position].tokens :]
        trial = fewest[: reached.size] + batch[position].patches
        gains.append(trial < reached)
        np.copyto(reached, trial, where=gains[-1])
        if fewest[tokens] <= patches:
            break
    total = int(np.flatnonzero(fewest <= patches)[-1])
    chosen = set()
    for position, gain in zip(reversed(fitting[: len(gains)]), reversed(gains), strict=True):
        before = total - batch[position].tokens
        if before >= 0 and gain[before]:
            chosen.add(position)
            total = before
    return chosen
