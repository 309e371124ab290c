"""The names of a dataset and of a processor go in; token lengths, the fill of packs and steps per epoch come out."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, get_args

import numpy as np

from packloom.config import DataConfig, LoaderConfig, PackingConfig, TailPolicy
from packloom.datasets.aux_media import AuxLibrary
from packloom.errors import ConfigError, TooManyErrors
from packloom.loader.blend_feed import EpochizedFeed
from packloom.loader.feeds import make_finite_feed
from packloom.loader.lance_feed import spawn_for_lance
from packloom.loader.lanes import check_cluster
from packloom.loader.lengths import Lengths, measure_lengths
from packloom.report.histogram import Histogram, histogram
from packloom.report.samples import load_encoder, source_config, spread
from packloom.report.spec import DataSpec, EncoderSpec
from packloom.report.steps import Steps, plan_steps

#: Of bad samples: they are counted here, and end nothing.
_NO_LIMIT = 1 << 62
_PERCENTILES = (1, 5, 25, 50, 75, 95, 99)


@dataclass(frozen=True, kw_only=True)
class Shape:
    """The loaders to plan for: every pack length, or every micro-batch size, with every number of ranks."""

    pack_lengths: tuple[int, ...] = (8192,)
    micro_batch_sizes: tuple[int, ...] = ()  # padded batches instead of packs, of samples of any length
    dp_sizes: tuple[int, ...] = (1,)
    segment_multiple: int = 1
    tail: TailPolicy = "pad"
    seed: int = 0
    shuffle: bool = True

    def __post_init__(self) -> None:
        for name in ("pack_lengths", "dp_sizes", "micro_batch_sizes"):
            values = getattr(self, name)
            if any(value < 1 for value in values):
                raise ConfigError(f"{name} must be positive, got {', '.join(map(str, values))}")
        if self.tail not in get_args(TailPolicy):
            raise ConfigError(f"tail must be one of {', '.join(get_args(TailPolicy))}, got {self.tail!r}")


@dataclass(frozen=True, kw_only=True)
class Stats:
    """What ``measure_stats`` found."""

    lengths: Lengths
    steps: tuple[Steps, ...]

    @property
    def tokens(self) -> Histogram:
        """The lengths of all good samples, media tokens included."""
        return histogram(self.lengths.tokens[self.lengths.good])

    @property
    def media_tokens(self) -> Histogram:
        """The media tokens of the samples that have any."""
        found = self.lengths.media_tokens
        return histogram(found[found > 0])

    @property
    def supervised(self) -> Histogram:
        """The share of each good sample's tokens that is trained on, in per cent."""
        good = self.lengths.good
        return histogram(100.0 * self.lengths.loss_tokens[good] / self.lengths.tokens[good], max_bins=10)

    @property
    def totals(self) -> dict[str, Any]:
        """Sums over the good samples."""
        found, good = self.lengths, self.lengths.good
        tokens = int(found.tokens[good].sum())
        return {
            "num_samples": found.total,
            "num_measured": len(found.numbers),
            "num_encoded": found.num_measured,  # of them not in the cache
            "is_exact": found.is_exact,
            "refused": dict(sorted(found.refused.items())),
            "tokens": tokens,
            "media_tokens": int(found.media_tokens[good].sum()),
            "supervised_tokens": int(found.loss_tokens[good].sum()),
            "supervised_share": int(found.loss_tokens[good].sum()) / tokens,
            "mean": tokens / int(good.sum()),
            "min": int(found.tokens[good].min()),
            "max": int(found.tokens[good].max()),
            "percentiles": {str(p): int(np.percentile(found.tokens[good], p, method="higher")) for p in _PERCENTILES},
        }

    def as_dict(self) -> dict[str, Any]:
        """Plain data for ``--json``."""
        return {
            **self.totals,
            "histogram": self.tokens.as_dict(),
            "media_histogram": self.media_tokens.as_dict(),
            "supervised_histogram": self.supervised.as_dict(),
            "steps": [asdict(item) for item in self.steps],
        }


def measure_stats(
    data: DataSpec,
    encoder: EncoderSpec,
    shape: Shape | None = None,
    *,
    limit: int | None = None,
    num_workers: int = 0,
    cache_dir: str | None = None,
) -> Stats:
    """Measure the dataset, or ``limit`` samples evenly spread over it, and plan the loaders of ``shape``.

    No image is decoded. Lengths are kept in ``cache_dir``, if one is named. Raises ConfigError for ranks that cannot
    share the lanes and for a weighted blend, ShardError for a dataset without an index, ProcessorError for an encoder
    that cannot be loaded, TooManyErrors if no sample is good.
    """
    shape = shape or Shape()
    configs = [_packed(data, shape, length) for length in shape.pack_lengths]
    configs += [_padded(data, shape, size) for size in shape.micro_batch_sizes]
    for dp_size in shape.dp_sizes:
        check_cluster(LoaderConfig().num_lanes, dp_size=dp_size, num_workers=0)
    lengths = measure_dataset(data, encoder, limit=limit, num_workers=num_workers, cache_dir=cache_dir)
    if not lengths.good.any():
        raise TooManyErrors(
            f"all {len(lengths.numbers)} samples that were read are refused, most often with"
            f" {lengths.refused.most_common(1)[0][0]}: see `packloom lint {data.path[0]} --processor ...`"
        )
    steps = [item for config in configs for item in plan_steps(lengths, config, shape.dp_sizes)]
    return Stats(lengths=lengths, steps=tuple(steps))


def measure_dataset(
    data: DataSpec,
    encoder: EncoderSpec,
    *,
    limit: int | None = None,
    num_workers: int = 0,
    cache_dir: str | None = None,
) -> Lengths:
    """The lengths of all samples, or of ``limit`` evenly spread; raises as ``measure_stats``."""
    loader = LoaderConfig(layout="padded", num_workers=num_workers, max_consecutive_errors=_NO_LIMIT)
    config = spawn_for_lance(DataConfig(source=source_config(data), loader=loader))
    library = AuxLibrary()
    feed = make_finite_feed(config, library)
    if isinstance(feed, EpochizedFeed) and limit is not None:
        raise ConfigError("the epochs of an epochised blend are known by its whole content: measure it without a limit")
    numbers = spread(feed.num_samples, limit)
    loaded = load_encoder(encoder)
    return measure_lengths(feed, loaded, config, library, numbers=numbers, cache_dir=cache_dir, progress=True)


def _packed(data: DataSpec, shape: Shape, length: int) -> DataConfig:
    return DataConfig(
        source=source_config(data, seed=shape.seed, shuffle=shape.shuffle),
        packing=PackingConfig(pack_length=length, segment_multiple=shape.segment_multiple),
        loader=LoaderConfig(layout="packed", tail=shape.tail),
    )


def _padded(data: DataSpec, shape: Shape, size: int) -> DataConfig:
    return DataConfig(
        source=source_config(data, seed=shape.seed, shuffle=shape.shuffle),
        loader=LoaderConfig(
            layout="padded", micro_batch_size=size, pad_to_multiple_of=shape.segment_multiple, tail=shape.tail
        ),
    )
