"""A blend enters, its opened leaves leave, with one number for every sample of every leaf."""

from __future__ import annotations

import hashlib
import json
import math
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import accumulate
from typing import Any

from packloom.blend import Blend, FlatLeaf, flatten
from packloom.datasets.aux_media import AuxLibrary, AuxShelf
from packloom.datasets.blend_yaml import expand_blend
from packloom.datasets.dataset import ShardDataset, open_dataset
from packloom.errors import ConfigError, ReadError, ShardError
from packloom.types import RawSample

#: Leaves that a fingerprint names, beside the digest of all: every state holds it.
_MAX_TOLD = 8


@dataclass(frozen=True, kw_only=True)
class OpenLeaf:
    """One leaf: the samples ``start`` .. ``stop`` of a dataset. Where a dataset comes twice it is opened once."""

    name: str
    dataset: ShardDataset
    start: int
    stop: int
    share: Fraction
    subflavors: dict[str, Any]
    copy: int  # how many earlier leaves have the same samples
    aux: AuxShelf | None = None

    @property
    def num_samples(self) -> int:
        return self.stop - self.start

    @property
    def identity(self) -> str:
        """What its order is derived from: the samples and how many leaves before have them too. Not the path."""
        return f"{self.dataset.fingerprint} {self.start} {self.stop} {self.copy}"

    @property
    def num_drawn(self) -> int:
        """The samples per epoch of an epochised blend."""
        return math.floor(self.num_samples * self.share)


class BlendData:
    """The leaves of a blend. Samples are numbered through all leaves in order. Pickles as far as the datasets do."""

    def __init__(self, kind: str, leaves: Sequence[OpenLeaf]) -> None:
        self.kind = kind
        self.leaves = tuple(leaves)
        self._ends = list(accumulate(leaf.num_samples for leaf in leaves))
        #: Kind, leaves with their shares, and a digest of all of that with what the leaves hold.
        self.fingerprint = _fingerprint(kind, self.leaves)

    def __len__(self) -> int:
        return self._ends[-1]

    def number(self, leaf: int, place: int) -> int:
        """The number of a leaf's sample."""
        return place + (self._ends[leaf - 1] if leaf else 0)

    def locate(self, number: int) -> tuple[int, int]:
        """(leaf, place in it) of a sample."""
        leaf = bisect_right(self._ends, number)
        return leaf, number - (self._ends[leaf - 1] if leaf else 0)

    def read(self, number: int) -> RawSample:
        """All parts, with the leaf's name as ``__dataset__`` and its ``__subflavors__``; raises ReadError."""
        leaf, place = self._place(number)
        return _marked(leaf, leaf.dataset.read(*leaf.dataset.locate(place)))

    def read_many(self, numbers: Sequence[int], parts: Sequence[str]) -> list[RawSample | ReadError]:
        """Some parts of several samples; those of one dataset are read together."""
        groups: dict[int, list[int]] = {}
        for at, number in enumerate(numbers):
            groups.setdefault(id(self._place(number)[0].dataset), []).append(at)
        found: dict[int, RawSample | ReadError] = {}
        for group in groups.values():
            places = [self._place(numbers[at]) for at in group]
            raws = places[0][0].dataset.read_many([place for _, place in places], parts=parts)
            for at, (leaf, _), raw in zip(group, places, raws, strict=True):
                found[at] = raw if isinstance(raw, ReadError) else _marked(leaf, raw)
        return [found[at] for at in range(len(numbers))]

    def shard_path(self, number: int) -> str:
        """The shard that a sample lies in."""
        leaf, place = self._place(number)
        return leaf.dataset.shard_path(leaf.dataset.locate(place)[0])

    def offset(self, number: int) -> int | None:
        """The byte of that shard where it begins, as far as it is known."""
        leaf, place = self._place(number)
        return leaf.dataset.offset(*leaf.dataset.locate(place))

    def _place(self, number: int) -> tuple[OpenLeaf, int]:
        leaf, place = self.locate(number)
        return self.leaves[leaf], self.leaves[leaf].start + place


def open_blend(blend: Blend, library: AuxLibrary) -> BlendData:
    """Open every leaf, and the aux datasets of each in ``library``.

    Raises ConfigError or ShardError, which names the leaf, for one that cannot be opened or is empty.
    """
    expanded = expand_blend(blend)
    opened: dict[tuple[object, ...], ShardDataset] = {}
    leaves: list[OpenLeaf] = []
    for item in flatten(expanded):
        dataset = _open(item, opened)
        try:
            start, stop = item.cut.of(len(dataset))
        except ConfigError as error:
            raise ConfigError(f"leaf {item.name!r} of the blend: {error}") from error
        copies = [leaf for leaf in leaves if (leaf.dataset is dataset, leaf.start, leaf.stop) == (True, start, stop)]
        leaf = OpenLeaf(
            name=item.name,
            dataset=dataset,
            start=start,
            stop=stop,
            share=item.share,
            subflavors=dict(item.subflavors),
            copy=len(copies),
            aux=library.shelf(item.leaf.aux) if item.leaf.aux else None,
        )
        if not leaf.num_samples or (expanded.kind == "epochized" and not leaf.num_drawn):
            raise ConfigError(
                f"leaf {item.name!r} of the blend gives no sample: its dataset has {len(dataset)}, of which"
                f" {leaf.num_samples} are in its subset. Take it out"
            )
        leaves.append(leaf)
    return BlendData(expanded.kind, leaves)


def _open(item: FlatLeaf, opened: dict[tuple[object, ...], ShardDataset]) -> ShardDataset:
    leaf = item.leaf
    wanted = (leaf.path, leaf.index_dir, leaf.split_part)
    try:
        if wanted not in opened:
            opened[wanted] = open_dataset(leaf.path, index_dir=leaf.index_dir, split_part=leaf.split_part)
    except ConfigError as error:
        raise ConfigError(f"leaf {item.name!r} of the blend: {error}") from error
    except ShardError as error:
        raise ShardError(f"leaf {item.name!r} of the blend: {error}") from error
    return opened[wanted]


def _marked(leaf: OpenLeaf, raw: RawSample) -> RawSample:
    aux = {} if leaf.aux is None else {"__aux__": leaf.aux}
    return {**raw, **aux, "__dataset__": leaf.name, "__subflavors__": leaf.subflavors}


def _fingerprint(kind: str, leaves: Sequence[OpenLeaf]) -> str:
    content = [[leaf.identity, str(leaf.share), leaf.subflavors] for leaf in leaves]
    digest = hashlib.sha256(json.dumps([kind, content], sort_keys=True, default=str).encode()).hexdigest()
    told = ", ".join(f"{leaf.name} {leaf.share}" for leaf in leaves[:_MAX_TOLD])
    told += f" and {len(leaves) - _MAX_TOLD} more" if len(leaves) > _MAX_TOLD else ""
    return f"{kind} blend of {told} ({digest[:32]})"
