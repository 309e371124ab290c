"""Sharded datasets: writing, indexing and reading them, their order, and what happens to bad samples."""

from packloom.datasets.dataset import ShardDataset, open_dataset
from packloom.datasets.epoch_order import EpochOrder
from packloom.datasets.index_build import IndexReport, build_index
from packloom.datasets.policy import ErrorPolicy, Quarantine, SkipRecord
from packloom.datasets.safe_map import SafeMap
from packloom.datasets.shards import expand_paths, read_shard
from packloom.datasets.writer import write_shards

__all__ = [
    "EpochOrder",
    "ErrorPolicy",
    "IndexReport",
    "Quarantine",
    "SafeMap",
    "ShardDataset",
    "SkipRecord",
    "build_index",
    "expand_paths",
    "open_dataset",
    "read_shard",
    "write_shards",
]
