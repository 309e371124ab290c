"""The costs of all samples of an epoch go in, the pack of each comes out, where tokens and patches are both scarce."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from packloom.packing.cost import Counts

#: Steps of either cost that samples are told apart by.
_STEPS = 96


def pack_by_patterns(tokens: Counts, patches: Counts, *, most_tokens: int, most_patches: int) -> NDArray[np.int32]:
    """[K] tokens and [K] patches → [K] the pack of each sample.

    Samples of like tokens and like patches count as one kind, of the greatest of them. A pack begins with the kind that
    takes most of the scarcer cost and goes on with the one that fits best into what is left of both: that with the
    greatest dot product (Panigrahy et al., "Heuristics for vector bin packing", 2011). The same pattern is then used
    for as many packs as its kinds last, so that the time grows with the number of kinds.
    """
    sizes = np.stack([tokens / most_tokens, patches / most_patches])  # [2, K]
    steps = np.ceil(sizes * _STEPS).astype(np.int64)
    _, kind, counts = np.unique(steps[0] * (_STEPS + 1) + steps[1], return_inverse=True, return_counts=True)
    order = np.argsort(kind, kind="stable")
    starts = np.cumsum(counts) - counts
    greatest = np.stack([np.maximum.reduceat(costs[order], starts) for costs in (tokens, patches)]).astype(np.int64)
    limits = np.array([most_tokens, most_patches])
    pack_of, num_packs = np.empty(kind.size, dtype=np.int32), 0
    left = counts.copy()
    while (alive := np.flatnonzero(left)).size:
        pattern = _pattern(greatest[:, alive], left[alive], limits)
        used = np.flatnonzero(pattern)
        number = int((left[alive[used]] // pattern[used]).min())
        packs = np.arange(num_packs, num_packs + number, dtype=np.int32)
        for place in used.tolist():
            each, one = int(pattern[place]), alive[place]
            first = starts[one] + counts[one] - left[one]
            pack_of[order[first : first + each * number]] = np.repeat(packs, each)
            left[one] -= each * number
        num_packs += number
    return pack_of


def _pattern(costs: NDArray[np.int64], left: NDArray[np.int64], limits: NDArray[np.int64]) -> NDArray[np.int64]:
    """[2, M] costs of kinds, [M] how many are left → [M] how many of each go into one pack."""
    share = costs / limits[:, np.newaxis]  # [2, M]
    pattern, room = np.zeros_like(left), limits.copy()
    place = int(share.max(axis=0).argmax())
    while True:
        pattern[place] += 1
        room = room - costs[:, place]
        fits = (costs <= room[:, np.newaxis]).all(axis=0) & (pattern < left)
        if not fits.any():
            return pattern
        place = int(np.where(fits, (room / limits) @ share, -1.0).argmax())
