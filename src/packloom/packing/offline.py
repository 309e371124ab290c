"""The costs of all samples of an epoch go in at once, the pack of each comes out: best-fit-decreasing."""

from __future__ import annotations

from collections import deque

import numpy as np
from numpy.typing import NDArray

from packloom.errors import PackingError
from packloom.packing.contract import PackLimits
from packloom.packing.cost import Counts
from packloom.packing.patterns import pack_by_patterns


def best_fit_decreasing(tokens: Counts, patches: Counts, limits: PackLimits) -> NDArray[np.int32]:
    """[K] tokens and [K] patches → [K] the pack of each sample, packs counted from 0.

    Longest first, each goes into the pack with least room that holds it; of equally long ones the first goes first.
    Packs with equal room are handled together, so the time grows with the number of different lengths, and with K only
    as sorting does. Where a pack would then be over ``limits.patches``, all are packed by ``pack_by_patterns`` instead.

    Raises PackingError for a sample that fits no pack.
    """
    _check(tokens, patches, limits)
    pack_of, _ = _by_size(tokens, limits.tokens)
    if limits.patches is None or not tokens.size or np.bincount(pack_of, weights=patches).max() <= limits.patches:
        return pack_of
    return pack_by_patterns(tokens, patches, most_tokens=limits.tokens, most_patches=limits.patches)


def _check(tokens: Counts, patches: Counts, limits: PackLimits) -> None:
    most = np.iinfo(np.int64).max if limits.patches is None else limits.patches
    wrong = np.flatnonzero((tokens < 1) | (tokens > limits.tokens) | (patches < 0) | (patches > most))
    if wrong.size:
        place = int(wrong[0])
        raise PackingError(
            f"index {place} costs {tokens[place]} tokens and {patches[place]} patches, which fits no pack of {limits}:"
            " filter such samples before packing"
        )


def _by_size(sizes: Counts, limit: int) -> tuple[NDArray[np.int32], int]:
    """[K] sizes → [K] packs and their number."""
    width = np.uint16 if limit < 1 << 16 else np.int64  # numpy sorts the narrow one by radix
    order = np.argsort((limit - sizes).astype(width), kind="stable")
    counts = np.bincount(sizes, minlength=1)
    placed = np.empty(sizes.size, dtype=np.int32)  # the pack of each, longest first
    rooms, done, num_packs = _Rooms(), 0, 0
    for size in np.flatnonzero(counts)[::-1].tolist():
        stop = done + int(counts[size])
        while done < stop:
            room = rooms.least(size)
            each = (limit if room is None else room) // size  # as many of this size go into a pack
            wanted = -(-(stop - done) // each)
            if room is None:
                room, packs = limit, np.arange(num_packs, num_packs + wanted, dtype=np.int32)
                num_packs += wanted
            else:
                packs = rooms.take(room, wanted)
            number = min(packs.size * each, stop - done)
            placed[done : done + number] = np.repeat(packs, each)[:number]
            whole, rest = divmod(number, each)
            rooms.put(room - each * size, packs[:whole])
            rooms.put(room - rest * size, packs[whole:])
            done += number
    pack_of = np.empty_like(placed)
    pack_of[order] = placed
    return pack_of, num_packs


class _Rooms:
    """Packs by the room that they have left; bit r of a mask says whether any has room r."""

    def __init__(self) -> None:
        self._packs: dict[int, deque[NDArray[np.int32]]] = {}
        self._mask = 0

    def least(self, size: int) -> int | None:
        """The least room of at least ``size`` that a pack has."""
        mask = self._mask >> size
        return size + (mask & -mask).bit_length() - 1 if mask else None

    def put(self, room: int, packs: NDArray[np.int32]) -> None:
        if room and packs.size:
            self._packs.setdefault(room, deque()).append(packs)
            self._mask |= 1 << room

    def take(self, room: int, most: int) -> NDArray[np.int32]:
        """Up to ``most`` packs of this room, which leave."""
        waiting, taken = self._packs[room], []
        while waiting and most:
            packs = waiting.popleft()
            if packs.size > most:
                waiting.appendleft(packs[most:])
            taken.append(packs[:most])
            most -= taken[-1].size
        if not waiting:
            del self._packs[room]
            self._mask &= ~(1 << room)
        return np.concatenate(taken)
