"""Shard paths, a seed and an epoch enter, what one worker slot reads and in which order leaves; pure functions only."""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TypeVar

from packloom.errors import ConfigError
from packloom.rng import derive

_T = TypeVar("_T")


@dataclass(frozen=True, kw_only=True, slots=True)
class ShardRead:
    """A part of one shard: its items ``first``, ``first + step``, ..."""

    path: str
    first: int = 0
    step: int = 1


def plan_reads(
    paths: Sequence[str], *, seed: int, epoch: int, shuffle: bool, slot: int, num_slots: int
) -> list[ShardRead]:
    """What worker slot ``slot`` of ``num_slots`` reads in an epoch. Over all slots: every item exactly once.

    With shuffling, the shards stand in an order of their own in each epoch, and so do the slots: none keeps the same
    shards, and one that finds nothing in this epoch (fewer items than slots) gets something in a later one.
    """
    if not 0 <= slot < num_slots:
        raise ConfigError(f"slot {slot} is not in 0..{num_slots - 1}")
    if not shuffle:
        return split_reads(paths, slot=slot, num_slots=num_slots)
    ordered = shuffle_shards(paths, seed=seed, epoch=epoch)
    return split_reads(ordered, slot=(slot + epoch) % num_slots, num_slots=num_slots)


def shuffle_shards(paths: Sequence[str], *, seed: int, epoch: int) -> list[str]:
    """The shards in the order of an epoch. It depends on their places in ``paths``, not on where they are mounted."""
    ordered = list(paths)
    derive(seed, epoch, "shards").shuffle(ordered)
    return ordered


def split_reads(paths: Sequence[str], *, slot: int, num_slots: int) -> list[ShardRead]:
    """Whole shards where there is one per slot at least; else each slot takes every ``num_slots``-th item of each.

    In the second case item ``i`` of shard ``k`` goes to slot ``(i + k) % num_slots``, so that many tiny shards do not
    all give their first item to slot 0.
    """
    if len(paths) >= num_slots:
        return [ShardRead(path=path) for path in paths[slot::num_slots]]
    return [ShardRead(path=path, first=(slot - place) % num_slots, step=num_slots) for place, path in enumerate(paths)]


def shuffle_window(items: Iterable[_T], *, window: int, rng: random.Random) -> Iterator[_T]:
    """Shuffle a stream through a buffer of ``window`` items: each newcomer takes a random place in it."""
    waiting: list[_T] = []
    for item in items:
        if len(waiting) < window:
            waiting.append(item)
            continue
        place = rng.randrange(window)
        waiting[place], item = item, waiting[place]
        yield item
    rng.shuffle(waiting)
    yield from waiting
