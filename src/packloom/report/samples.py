"""The names of a dataset and an encoder go in; its samples, chunk by chunk in any process, and the encoder come out."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, fields
from functools import lru_cache

from packloom.config import DataConfig, LoaderConfig, SampleConfig, SourceConfig
from packloom.datasets.aux_media import AuxLibrary
from packloom.datasets.blend_data import open_blend
from packloom.datasets.files import list_tars
from packloom.datasets.folders import select_shards
from packloom.datasets.paths import join
from packloom.datasets.policy import ErrorPolicy
from packloom.datasets.shards import expand_paths, is_stream, read_shard
from packloom.errors import ReadError, ShardError
from packloom.loader.feed import DatasetFeed, LaneFeed
from packloom.loader.feeds import find_blend, make_feed
from packloom.loader.lance_address import is_lance
from packloom.loader.stages import Stages
from packloom.report.spec import DataSpec, EncoderSpec
from packloom.task_encoders import TaskEncoder
from packloom.types import RawSample

#: Samples of a chunk, at most: little enough that progress shows and no worker is left with much at the end.
_CHUNK = 64
_CHUNKS_PER_WORKER = 8


@dataclass(frozen=True, kw_only=True, slots=True)
class Chunk:
    """Samples that are read together: numbers of an indexed dataset, or every ``step``-th of a shard from ``first``."""

    numbers: tuple[int, ...] = ()
    shard: str = ""
    first: int = 0
    step: int = 1


@dataclass(frozen=True, kw_only=True, slots=True)
class Item:
    """One sample as it is read."""

    place: str  # where it lies, for people
    number: int  # in the dataset; of a shard without an index, in its chunk
    raw: RawSample | ReadError | ShardError


class Samples:
    """The samples of an opened dataset, indexed or not. ``feed`` is None where it has no (usable) index."""

    def __init__(self, spec: DataSpec, *, config: DataConfig | None = None, with_index: bool = True) -> None:
        """Raises ShardError and ConfigError as ``build_loader`` does; with ``with_index=False`` an index is ignored."""
        self.spec = spec
        self.library = AuxLibrary()
        self.config = config or DataConfig(source=source_config(spec), loader=LoaderConfig(layout="padded"))
        self.feed: LaneFeed | None = make_feed(self.config, self.library) if with_index else None
        self._shelf = self.library.shelf(dict(spec.aux)) if spec.aux and self.feed is None else None

    @property
    def total(self) -> int | None:
        """The number of samples, where an index knows it."""
        return self.feed.num_samples if self.feed is not None else None

    @property
    def has_own_keys(self) -> bool:
        """Whether keys name samples: not where a blend draws on several datasets."""
        return self.feed is None or isinstance(self.feed, DatasetFeed)

    def faults(self) -> list[tuple[str, ReadError]]:
        """(shard, what the index leaves out of it); of a blend, of every dataset in it."""
        if isinstance(self.feed, DatasetFeed):
            return list(self.feed.dataset.faults())
        blend = find_blend(self.config.source) if self.feed is not None and not is_lance(self.spec.path[0]) else None
        leaves = open_blend(blend, AuxLibrary()).leaves if blend is not None else ()
        datasets = {id(leaf.dataset): leaf.dataset for leaf in leaves}
        return [fault for dataset in datasets.values() for fault in dataset.faults()]

    def shards(self) -> tuple[list[str], list[tuple[str, ShardError]]]:
        """The shards to read where there is no index, and those that cannot be read at all, with the reason."""
        found = [name for text in self.spec.path for name in _shard_names(text)]
        good: list[str] = []
        bad: list[tuple[str, ShardError]] = []
        for shard in dict.fromkeys(found):
            try:
                good += expand_paths(shard)
            except ShardError as error:
                bad.append((shard, error))
        return good, bad

    def chunks(self, num_workers: int) -> list[Chunk]:
        """All samples, cut so that workers share them evenly."""
        if self.feed is not None:
            return chunks_of(range(self.feed.num_samples), num_workers)
        shards, _ = self.shards()
        step = max(1, -(-2 * num_workers // max(1, len(shards)))) if num_workers > 1 else 1
        return [
            Chunk(shard=shard, first=first, step=1 if is_stream(shard) else step)
            for shard in shards
            for first in range(1 if is_stream(shard) else step)
        ]

    def read(self, chunk: Chunk) -> Iterator[Item]:
        """The samples of a chunk; a bad one is a ReadError in its place, a shard of another content a ShardError."""
        if self.feed is None:
            for number, raw in enumerate(read_shard(chunk.shard, first=chunk.first, step=chunk.step)):
                whole = raw if isinstance(raw, ReadError) or self._shelf is None else {**raw, "__aux__": self._shelf}
                yield Item(place=chunk.shard, number=number, raw=whole)
            return
        for number in chunk.numbers:
            place = self.feed.place_of(number)
            try:
                yield Item(place=place, number=number, raw=self.feed.read(number))
            except (ReadError, ShardError) as error:
                yield Item(place=place, number=number, raw=error)

    def stages(self, encoder: TaskEncoder) -> Stages:
        """The loader's own steps from a raw sample to a row; what is wrong with a sample they raise."""
        return Stages(encoder, self.config, ErrorPolicy(on_error="raise"), aux=self.library)


@lru_cache(maxsize=1)
def open_samples(spec: DataSpec, *, with_index: bool) -> Samples:
    """The samples; the last ones are kept, so that a worker opens its dataset once."""
    return Samples(spec, with_index=with_index)


def chunks_of(numbers: range | list[int], num_workers: int) -> list[Chunk]:
    """The numbers in order, cut so that workers share them evenly."""
    size = min(_CHUNK, max(1, len(numbers) // (_CHUNKS_PER_WORKER * max(1, num_workers))))
    return [Chunk(numbers=tuple(numbers[start : start + size])) for start in range(0, len(numbers), size)]


def spread(total: int, limit: int | None) -> range | list[int]:
    """At most ``limit`` numbers below ``total``, evenly spread; all of them without a limit."""
    if limit is None or limit >= total:
        return range(total)
    return [(2 * place + 1) * total // (2 * limit) for place in range(limit)]


def _shard_names(path: str) -> list[str]:
    """The shards of a path, empty ones too. Raises ShardError for a path that has none."""
    if is_lance(path) or find_blend(SourceConfig(path=path)) is not None:
        raise ShardError(f"{path} is no folder of tar shards: it cannot be read without being opened")
    if path == "-":
        return [path]
    names: list[str] = []
    for selection in select_shards(path):
        try:
            inside = list_tars(selection.folder) if selection.names is None else selection.names
        except OSError as error:
            raise ShardError(f"folder {selection.folder} cannot be listed: {error.strerror or error}") from error
        names += [join(selection.folder, name) for name in inside]
    return names or expand_paths(path)


def source_config(spec: DataSpec, *, seed: int = 0, shuffle: bool = True) -> SourceConfig:
    """The settings of a source that reads it."""
    return SourceConfig(
        path=spec.path[0] if len(spec.path) == 1 else spec.path,
        index_dir=spec.index_dir,
        split_part=spec.split_part,
        aux=dict(spec.aux),
        shuffle=shuffle,
        seed=seed,
    )


@lru_cache(maxsize=1)
def load_encoder(spec: EncoderSpec) -> TaskEncoder:
    """The encoder; the last one is kept, so that a worker loads it once. Raises ProcessorError, ConfigError."""
    settings = SampleConfig() if spec.config is None else DataConfig.from_yaml(spec.config).sample
    own = {name: getattr(spec, name) for name in ("max_length", "min_pixels", "max_pixels")}
    stated = {name: value for name, value in own.items() if value is not None}
    values = {item.name: getattr(settings, item.name) for item in fields(settings)}
    return TaskEncoder.from_pretrained(spec.processor, **{**values, **stated})
