"""A dataset and an encoder go in; the packs of whole epochs, chosen with all lengths in sight, come out as a file."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from typing_extensions import Unpack

from packloom.config import DataConfig
from packloom.datasets.aux_media import AuxLibrary
from packloom.datasets.permutation import make_permutation
from packloom.datasets.policy import SkipRecord
from packloom.errors import ConfigError, PlanError
from packloom.loader.build import Source, base_config, complete, override
from packloom.loader.feed import LaneFeed, OrderedFeed
from packloom.loader.feeds import make_finite_feed
from packloom.loader.lance_feed import spawn_for_lance
from packloom.loader.lengths import Lengths, measure_lengths
from packloom.loader.plan_check import facts_of
from packloom.loader.plan_feed import PlanFeed
from packloom.loader.plan_file import EpochTable, write_plan
from packloom.loader.settings import LoaderSettings
from packloom.loader.stages import Encoder
from packloom.packing import PackLimits
from packloom.packing.balance import imbalance
from packloom.packing.offline import best_fit_decreasing

#: The folder beside a plan that keeps lengths.
CACHE_NAME = ".packloom-lengths"
#: Ranks for which a report says how even the steps are.
_SHOWN_RANKS = 8


@dataclass(frozen=True, kw_only=True)
class PlanReport:
    """What was planned."""

    path: str
    num_samples: int  # of the dataset
    num_measured: int  # of them not in the cache
    num_packs: tuple[int, ...]  # per epoch
    fill: float  # tokens over the room of all packs
    imbalance: float  # see ``packing.balance.imbalance``, for 8 ranks
    imbalance_unbalanced: float  # the same of the same packs in a random order
    left_out: dict[str, int]  # code → samples that are in no pack
    faults: tuple[SkipRecord, ...]  # of those that are bad, whatever the pack length


def make_plan(
    source: Source,
    encoder: Encoder,
    path: str | os.PathLike[str],
    *,
    cache_dir: str | os.PathLike[str] | None = None,
    balance_ranks: int = 96,
    progress: bool = False,
    **settings: Unpack[LoaderSettings],
) -> PlanReport:
    """Write a plan of packs for ``build_loader(source, encoder, plan=path, **settings)``.

    Every sample is encoded (no image is decoded), by ``num_workers`` workers; its length is kept in ``cache_dir``
    (default: ``.packloom-lengths`` beside the plan) for the next plan over the same data and encoder. ``epochs`` epochs
    (default: one) are packed by best-fit-decreasing, each differently after ``seed``. Packs that cost alike (see
    ``cost_linear``) follow one another in groups of ``balance_ranks``: the steps of any number of ranks that divides it
    are even.

    Raises PlanError if no sample fits a pack, ShardError for shards without an index, ConfigError for settings that a
    plan has no place for, TooManyErrors where samples fail, CapabilityError without pyarrow (extra ``plan``).
    """
    config = complete(override(base_config(source), dict(settings)), encoder)
    if config.loader.layout != "packed" or config.source.plan is not None or balance_ranks < 1:
        raise ConfigError("a plan is of packs: it needs layout='packed', no other plan, and balance_ranks of 1 or more")
    config = spawn_for_lance(config)
    library = AuxLibrary()
    feed = make_finite_feed(config, library)
    target = Path(path)
    folder = target.parent / CACHE_NAME if cache_dir is None else cache_dir
    lengths = measure_lengths(feed, encoder, config, library, cache_dir=os.fspath(folder), progress=progress)
    facts = facts_of(config, feed, encoder, library)
    limits = PackLimits(facts["settings"]["pack_tokens"], config.packing.max_patches)
    costs, codes = pack_costs(lengths, config, limits)
    if not (costs > 0).any():
        raise PlanError(f"no sample fits a pack of {limits}: {dict(codes)}. Mend the data, or raise pack_length")
    header = {
        **facts,
        "balance_ranks": balance_ranks,
        "num_samples": feed.num_samples,
        "left_out": dict(codes),
    }
    plan = write_plan(target, header, plan_epochs(feed, lengths, costs, limits, config))
    return _report(PlanFeed(feed, plan), lengths, dict(codes))


def pack_costs(lengths: Lengths, config: DataConfig, limits: PackLimits) -> tuple[NDArray[np.int64], Counter[str]]:
    """[K] the tokens that each sample takes of a pack (as ``Stages.cost``), 0 for those that are left out; and why."""
    multiple, length = config.packing.segment_multiple, config.packing.pack_length or 1
    tokens = -(-lengths.tokens.astype(np.int64) // multiple) * multiple
    # a pack with a medium needs no dummy, so one sample may take the dummy's room
    tokens = np.where(lengths.has_media & (tokens <= length), np.minimum(tokens, limits.tokens), tokens)
    codes = Counter(record.code for record in lengths.faults.values())
    is_empty = tokens == 0
    is_long = tokens > limits.tokens
    has_many = (lengths.patches > limits.patches if limits.patches is not None else np.zeros_like(is_long)) & ~is_long
    counted = {
        "pack.empty": int(is_empty.sum()) - len(lengths.faults),
        "pack.too_long": int(is_long.sum()),
        "pack.too_many_patches": int((has_many & ~is_empty).sum()),
    }
    codes.update({code: number for code, number in counted.items() if number})
    return np.where(is_long | has_many, 0, tokens), codes


def plan_epochs(
    feed: LaneFeed, lengths: Lengths, costs: NDArray[np.int64], limits: PackLimits, config: DataConfig
) -> Iterator[EpochTable]:
    """The packs of each epoch. Which of equally long samples share a pack depends on seed and epoch."""
    for epoch in range(config.source.epochs or 1):
        samples, rounds = _draws(feed, epoch)
        parts = (feed.fingerprint, config.source.seed, epoch, "plan")
        shuffled = make_permutation(samples.size, *parts).at_many(np.arange(samples.size))
        fitting = shuffled[costs[samples[shuffled]] > 0]
        pack = np.full(samples.size, -1, dtype=np.int32)
        chosen = samples[fitting]
        pack[fitting] = best_fit_decreasing(costs[chosen], lengths.patches[chosen], limits)
        yield EpochTable(
            sample=samples, round=rounds, pack=pack, tokens=lengths.tokens[samples], patches=lengths.patches[samples]
        )


def _draws(feed: LaneFeed, epoch: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """What an epoch draws: sample numbers, and for each the epoch that it counts as."""
    if isinstance(feed, OrderedFeed):  # each sample once
        return np.arange(feed.num_samples), np.full(feed.num_samples, epoch)
    found = []
    for lane in range(feed.num_lanes):
        length = feed.epoch_length(lane)
        draws = range(epoch * length, (epoch + 1) * length)
        found += [(feed.sample_of(lane, draw), feed.epoch_of(lane, draw)) for draw in draws]
    samples, rounds = np.array(found, dtype=np.int64).T
    return samples, rounds


def _report(feed: PlanFeed, lengths: Lengths, left_out: dict[str, int]) -> PlanReport:
    plan, costs, num_before, tokens = feed.plan, list[NDArray[np.int64]](), 0, 0
    for epoch in range(plan.num_epochs):
        costs.append(feed.costs(epoch, num_before))
        num_before += plan.num_packs[epoch]
        tokens += int(plan.epoch(epoch).tokens.sum(dtype=np.int64))
    joined = np.concatenate(costs)
    shuffled = joined[make_permutation(joined.size, "unbalanced").at_many(np.arange(joined.size))]
    return PlanReport(
        path=str(plan.path),
        num_samples=feed.num_samples,
        num_measured=lengths.num_measured,
        num_packs=plan.num_packs,
        fill=tokens / (num_before * plan.header["settings"]["pack_length"]),
        imbalance=imbalance(joined, _SHOWN_RANKS),
        imbalance_unbalanced=imbalance(shuffled, _SHOWN_RANKS),
        left_out=left_out,
        faults=tuple(lengths.faults.values()),
    )
