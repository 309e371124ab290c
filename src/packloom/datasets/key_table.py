"""A dataset enters, a table leaves that finds a sample by its key, e.g. the media that another dataset names."""

from __future__ import annotations

import hashlib

import numpy as np

from packloom.datasets.dataset import ShardDataset
from packloom.errors import ReadError


class KeyTable:
    """Positions by key: 12 bytes per sample in memory, the digests of the keys in order beside the positions.

    May be pickled; forked workers share its memory. A digest that fits is compared with the key itself.
    """

    def __init__(self, dataset: ShardDataset, digests: np.ndarray, positions: np.ndarray) -> None:
        """``digests`` [N] uint64 in ascending order, ``positions`` [N]; ``make_key_table`` makes them."""
        self._dataset = dataset
        self._digests = digests
        self._positions = positions

    def find(self, key: str) -> tuple[int, int]:
        """(shard, index) of the sample with this key. Raises ReadError if there is none, or more than one."""
        digest = _digest([key])[0]
        first, last = (int(np.searchsorted(self._digests, digest, side=side)) for side in ("left", "right"))
        places = [self._dataset.locate(int(position)) for position in self._positions[first:last]]
        found = [place for place in places if self._dataset.key(*place) == key]
        if not found:
            hint = "check the name, or add the sample and run `packloom index`"
            raise ReadError("no sample of the dataset has this key", key=key, code="read.missing_key", hint=hint)
        if len(found) > 1:
            shards = " and ".join(self._dataset.shard_path(shard) for shard, _ in found[:2])
            reason = f"{len(found)} samples of the dataset have this key, e.g. in {shards}"
            raise ReadError(reason, key=key, code="read.ambiguous_key", hint="give every sample its own key")
        return found[0]


def make_key_table(dataset: ShardDataset) -> KeyTable:
    """Read the keys of all shards: about a second per million samples. Raises ReadError, ShardError."""
    digests = np.concatenate([_digest(dataset.keys(shard)) for shard in range(dataset.num_shards)])
    order = np.argsort(digests, kind="stable")
    return KeyTable(dataset, digests[order], order.astype(np.min_scalar_type(len(order))))


def _digest(keys: list[str]) -> np.ndarray:
    """[len(keys)] uint64."""
    encoded = (key.encode("utf-8", "surrogateescape") for key in keys)
    return np.frombuffer(b"".join(hashlib.blake2b(key, digest_size=8).digest() for key in encoded), dtype=np.uint64)
