"""The settings of a pipeline go in; the feed of what its source names comes out, cut into lanes."""

from __future__ import annotations

from dataclasses import replace

from packloom.blend import Blend
from packloom.config import DataConfig, SourceConfig
from packloom.datasets.aux_media import AuxLibrary
from packloom.datasets.blend_data import BlendData, open_blend
from packloom.datasets.blend_yaml import is_blend_file, load_blend
from packloom.datasets.dataset import ShardDataset, open_dataset
from packloom.datasets.energon_meta import energon_shard_names
from packloom.datasets.folders import select_shards
from packloom.datasets.manifest import index_root, read_manifest
from packloom.errors import ConfigError, ShardError
from packloom.loader.blend_feed import ConcatFeed, EpochizedFeed, WeightedFeed
from packloom.loader.feed import DatasetFeed, LaneFeed
from packloom.loader.lance_address import is_lance
from packloom.loader.lance_feed import open_lance_feed
from packloom.loader.lanes import count_lanes

#: Samples that a lane takes at a time where nothing is shuffled and packs have no fixed number of them.
_PACKED_TURN = 16


def make_feed(config: DataConfig, library: AuxLibrary) -> LaneFeed | None:
    """The feed of an indexed dataset or of a blend; None for shards that were never indexed, which are a stream.

    Raises ConfigError and ShardError for what cannot be opened.
    """
    source = config.source
    if is_lance(source.path):
        return open_lance_feed(config, count_lanes=lambda total: _count_lanes(total, config), turn=_turn(config))
    blend = find_blend(source)
    if blend is not None:
        return _blend_feed(open_blend(blend, library), config)
    dataset = _open_if_indexed(source)
    if dataset is None:
        return None
    if not len(dataset):
        raise ShardError(f"the dataset holds no samples, e.g. {dataset.shard_path(0)}")
    return DatasetFeed(
        dataset,
        num_lanes=_count_lanes(len(dataset), config),
        seed=source.seed,
        shuffle=source.shuffle,
        block=source.shuffle_block,
        window=source.shuffle_window,
        turn=_turn(config),
        aux=library.shelf(source.aux) if source.aux else None,
    )


def make_finite_feed(config: DataConfig, library: AuxLibrary) -> LaneFeed:
    """The feed of what has epochs. Raises ConfigError for a weighted blend, ShardError where there is no index."""
    feed = make_feed(replace(config, source=replace(config.source, epochs=None)), library)
    if feed is None:
        raise ShardError(
            f"{config.source.path} has no index, by which samples are numbered: run `packloom index` on it first"
        )
    if isinstance(feed, WeightedFeed):
        raise ConfigError(
            "a weighted blend has no end, so neither epochs to plan nor steps to count: say how often each leaf comes"
            f" in an epoch, with blend_epochized (in Python kind='epochized'). {feed.repetitions_hint()}"
        )
    return feed


def find_blend(source: SourceConfig) -> Blend | None:
    """The blend of a source: its own, or that of the YAML file which it names. Raises ConfigError."""
    if source.blend is None and not is_blend_file(source.path):
        return None
    stated = [name for name in ("index_dir", "aux") if getattr(source, name)]
    if source.blend is not None and source.split_part is not None:
        stated.append("split_part")
    if stated:
        raise ConfigError(f"{' and '.join(stated)} would mean nothing beside a blend: state it per leaf")
    return load_blend(str(source.path), split_part=source.split_part) if source.blend is None else source.blend


def _blend_feed(data: BlendData, config: DataConfig) -> LaneFeed:
    source, turn = config.source, _turn(config)
    if data.kind == "concat":
        return ConcatFeed(data, source, num_lanes=_count_lanes(len(data), config), turn=turn)
    if data.kind == "epochized":
        total = sum(leaf.num_drawn for leaf in data.leaves)
        return EpochizedFeed(data, source, num_lanes=_count_lanes(total, config), turn=turn)
    if source.epochs is not None:
        raise ConfigError(
            f"a weighted blend has no epochs, but epochs={source.epochs}: leave it out, or use blend_epochized (in"
            " Python kind='epochized'), which says how often each leaf comes in an epoch"
        )
    return WeightedFeed(data, source, num_lanes=_count_lanes(len(data), config), turn=turn)


def _count_lanes(total: int, config: DataConfig) -> int:
    least = max(config.loader.min_lane_samples, 1 if config.source.shuffle else _turn(config))
    return count_lanes(total, num_lanes=config.loader.num_lanes, min_samples=least)


def _turn(config: DataConfig) -> int:
    return config.loader.micro_batch_size if config.loader.layout == "padded" else _PACKED_TURN


def _open_if_indexed(source: SourceConfig) -> ShardDataset | None:
    """The dataset, or None where no folder of it was ever indexed; then it is a stream."""
    named = source.index_dir is not None or source.split_part is not None
    if not named and not _has_index(source.path):
        return None
    return open_dataset(source.path, index_dir=source.index_dir, split_part=source.split_part)


def _has_index(path: str | tuple[str, ...]) -> bool:
    try:
        # a signed url (with a query) opens nothing but itself, so no index is looked for beside it
        folders = [item.folder for item in select_shards(path) if not any("?" in name for name in item.names or ())]
    except ShardError:  # no path of a dataset; the stream says what is wrong with it
        return False
    return any(
        energon_shard_names(folder) is not None
        or read_manifest(index_root(folder), next_move=f"run `packloom index {folder}`") is not None
        for folder in folders
    )
