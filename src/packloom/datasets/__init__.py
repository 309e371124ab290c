"""Sharded datasets: writing them, reading them, their order, and what happens to bad samples."""

from packloom.datasets.policy import ErrorPolicy, Quarantine, SkipRecord
from packloom.datasets.shards import expand_paths, read_shard
from packloom.datasets.writer import write_shards

__all__ = ["ErrorPolicy", "Quarantine", "SkipRecord", "expand_paths", "read_shard", "write_shards"]
