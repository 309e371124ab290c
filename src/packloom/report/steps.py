"""The lengths of all samples and a loader's settings go in; its steps per epoch and the fill of its packs come out.

The loader's own lanes are run over the lengths alone: nothing is read, encoded or decoded.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch

from packloom.config import DataConfig
from packloom.datasets.aux_media import AuxLibrary
from packloom.datasets.policy import ErrorPolicy
from packloom.errors import ConfigError, ReadError
from packloom.loader.feed import LaneFeed
from packloom.loader.feeds import make_feed
from packloom.loader.lanes import LaneGrid
from packloom.loader.lengths import Lengths
from packloom.loader.stages import Stages
from packloom.loader.worker import Plan
from packloom.types import EncodedMedia, EncodedSample, Media, RawSample, Row

_NO_LIMIT = 1 << 62
#: Standard errors on either side of an estimate: 99 % of a normal distribution.
_SPREAD = 2.58
#: Packs of each lane that stay part-empty at the end of an epoch, at most about.
_TAIL_PACKS = 2


@dataclass(frozen=True, kw_only=True)
class Steps:
    """One epoch of one loader. ``low`` and ``high`` are ``steps`` where it is exact."""

    layout: str
    length: int  # of a pack, or (padded) the longest sample that is let in
    micro_batch_size: int
    dp_size: int
    steps: int  # batches per rank
    low: int
    high: int
    fill: float  # tokens over the room of all batches
    num_samples: int  # in the batches of one epoch, over all ranks
    num_too_long: int  # that are longer than ``length`` and left out


def plan_steps(lengths: Lengths, config: DataConfig, dp_sizes: Sequence[int]) -> list[Steps]:
    """The steps of ``build_loader(config)`` with ``epochs=1`` for each number of ranks.

    Exact for lengths of all samples, as long as every image decodes; else with an interval: 99 % of what the samples
    that were looked at let expect, those that are refused or too long accounted for.
    """
    length = config.packing.pack_length or int(lengths.tokens.max(initial=1))
    good = lengths.good
    fits = good & (lengths.tokens <= length)
    share = 1.0 if lengths.is_exact else lengths.total / max(1, len(lengths.numbers))
    shared: dict[str, Any] = {
        "layout": config.loader.layout,
        "length": length,
        "micro_batch_size": config.loader.micro_batch_size,
        "num_samples": round(int(fits.sum()) * share),
        "num_too_long": round(int((good & ~fits).sum()) * share),
    }
    if not fits.any():
        return [Steps(dp_size=dp, steps=0, low=0, high=0, fill=0.0, **shared) for dp in dp_sizes]
    if not lengths.is_exact:
        return [_estimated(lengths, fits, config, dp, shared) for dp in dp_sizes]
    lanes = _run_lanes(lengths, replace(config, source=replace(config.source, epochs=1)))
    counts = [steps_of(lanes.slots, config, dp) for dp in dp_sizes]
    shared["num_samples"] = lanes.num_samples
    return [
        Steps(dp_size=dp, steps=count, low=count, high=count, fill=lanes.fill, **shared)
        for dp, count in zip(dp_sizes, counts, strict=True)
    ]


def steps_of(slots: Sequence[int], config: DataConfig, dp_size: int) -> int:
    """The batches of each rank in a pass in which lane ``i`` has ``slots[i]`` batches; see ``LaneEngine``."""
    grid = LaneGrid(num_lanes=len(slots), dp_size=dp_size)
    whole = config.loader.tail == "drop"
    rounds = 0
    while True:
        needed = [grid.slot_needed(rounds * grid.round_size, lane, whole_round=whole) for lane in range(len(slots))]
        has = [need < count for need, count in zip(needed, slots, strict=True)]
        if not (all(has) if whole else any(has)):
            break
        rounds += 1
    if dp_size == 1 and config.loader.tail == "pad":
        return sum(slots)  # a single rank gives no batch of fillers only
    return rounds * grid.round_size // dp_size


@dataclass(frozen=True, kw_only=True)
class _Lanes:
    slots: list[int]
    num_samples: int
    fill: float


def _run_lanes(lengths: Lengths, config: DataConfig) -> _Lanes:
    """The batches that each lane makes in one epoch, by the loader's own rules."""
    feed = make_feed(config, AuxLibrary())
    if feed is None or feed.num_samples != lengths.total:
        raise ConfigError("the dataset has changed while it was being measured: run it again")
    known = _KnownFeed(feed, lengths)
    plan = Plan(config=config, feed=known, encoder=_KnownEncoder(), grid=LaneGrid(num_lanes=feed.num_lanes))
    slots, num_samples, tokens, room = [], 0, 0, 0
    for number in range(feed.num_lanes):
        stages = Stages(plan.encoder, config, ErrorPolicy(max_consecutive=_NO_LIMIT))
        lane = plan.make_lane(number, 0, stages, None)
        while lane.has_slot(lane.slots):
            group = [sample.num_tokens for sample in lane.samples(lane.take() or ())]
            stages.policy.take_records()
            num_samples += len(group)
            tokens += sum(group)
            room += _room(group, config)
        slots.append(lane.slots)
    return _Lanes(slots=slots, num_samples=num_samples, fill=tokens / room if room else 0.0)


def _room(group: Sequence[int], config: DataConfig) -> int:
    """The tokens that a batch has room for."""
    if config.loader.layout == "packed":
        return config.packing.pack_length or 0
    multiple = config.loader.pad_to_multiple_of
    return config.loader.micro_batch_size * (-(-max(group, default=0) // multiple) * multiple)


class _KnownFeed:
    """A feed whose samples are their lengths; its order is that of the real one."""

    def __init__(self, feed: LaneFeed, lengths: Lengths) -> None:
        self._feed = feed
        self._lengths = lengths
        self.fingerprint, self.num_samples, self.num_lanes = feed.fingerprint, feed.num_samples, feed.num_lanes

    def epoch_length(self, lane: int) -> int:
        return self._feed.epoch_length(lane)

    def epoch_of(self, lane: int, draw: int) -> int:
        return self._feed.epoch_of(lane, draw)

    def sample_of(self, lane: int, draw: int) -> int:
        return self._feed.sample_of(lane, draw)

    def samples_from(self, lane: int, draw: int) -> Iterator[int]:
        return self._feed.samples_from(lane, draw)

    def read(self, sample: int) -> RawSample:
        fault = self._lengths.faults.get(sample)
        if fault is not None:
            raise ReadError("refused", key=str(sample), code=fault.code)
        numbers = (int(self._lengths.tokens[sample]), int(self._lengths.patches[sample]))
        return {"__key__": str(sample), "__url__": "", "numbers": numbers}

    def read_parts(self, samples: Sequence[int], parts: Sequence[str]) -> list[RawSample | ReadError]:
        return [self.read(sample) for sample in samples]

    def place_of(self, sample: int) -> str:
        return ""

    def offset_of(self, sample: int) -> int | None:
        return None

    def leaf_of(self, sample: int) -> str:
        return ""


class _KnownEncoder:
    """Makes samples of the right length that hold nothing."""

    max_length = None

    def encode_sample(self, raw: RawSample) -> EncodedSample:
        tokens, patches = raw["numbers"]
        medium = Media(kind="image", name="", data=b"")
        media = (EncodedMedia(media=medium, height=1, width=1, num_tokens=0, num_patches=patches),) if patches else ()
        return EncodedSample(
            key=raw["__key__"],
            input_ids=torch.zeros(1, dtype=torch.int64).expand(tokens),
            loss_mask=torch.zeros(1, dtype=torch.bool).expand(tokens),
            position_ids=torch.zeros(1, 1, dtype=torch.int64).expand(1, tokens),
            media=media,
        )

    def batch(self, samples: Sequence[EncodedSample]) -> list[Row]:
        raise ConfigError("samples that are known by their lengths hold nothing to decode")

    def collate(self, rows: Sequence[Row], **settings: Any) -> Any:
        raise ConfigError("samples that are known by their lengths hold nothing to collate")


def _estimated(lengths: Lengths, fits: np.ndarray, config: DataConfig, dp_size: int, shared: dict[str, Any]) -> Steps:
    """From a part of the samples: their tokens per sample, refused ones counted as 0, and the fill of their packs."""
    num, total = len(lengths.numbers), lengths.total
    packed = config.loader.layout == "packed"
    units = np.where(fits, lengths.tokens if packed else 1, 0).astype(np.float64)
    rest = 1 - num / total  # what was looked at is certain
    error = _SPREAD * total * float(units.std()) / math.sqrt(num) * math.sqrt(rest)
    fill, room = _fill_of(lengths, fits, config)
    counts = [
        (total * float(units.mean()) + side * error) / (room if packed else config.loader.micro_batch_size) / dp_size
        for side in (-1, 0, 1)
    ]
    lanes = min(config.loader.num_lanes, max(1, total // config.loader.min_lane_samples))
    tail = math.ceil(_TAIL_PACKS * lanes / dp_size) + 1
    low, middle, high = max(0, math.floor(counts[0])), max(1, round(counts[1])), math.ceil(counts[2]) + tail
    return Steps(dp_size=dp_size, steps=middle, low=min(low, middle), high=high, fill=fill, **shared)


def _fill_of(lengths: Lengths, fits: np.ndarray, config: DataConfig) -> tuple[float, float]:
    """The fill, and the tokens that a pack really holds, by packing the samples in the order in which they stand."""
    groups: list[list[int]] = []
    tokens = lengths.tokens[fits].tolist()
    if config.loader.layout == "packed":
        stages = Stages(_KnownEncoder(), config, ErrorPolicy())
        packer = stages.make_packer(None)
        patches = lengths.patches[fits].tolist()
        for place, numbers in enumerate(zip(tokens, patches, strict=True)):
            sample = _KnownEncoder().encode_sample({"__key__": "", "numbers": numbers})
            groups += packer.push(place, stages.cost(sample))
        groups = groups or packer.finish()  # the last packs of few samples are no pattern for those of many
    else:
        size = config.loader.micro_batch_size
        groups = [list(range(start, min(start + size, len(tokens)))) for start in range(0, len(tokens), size)]
    rows = [[tokens[place] for place in group] for group in groups]
    room = sum(_room(row, config) for row in rows)
    used = sum(map(sum, rows))
    return used / room, used / len(rows)
