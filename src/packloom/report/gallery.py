"""A dataset and an encoder go in; some samples as the model will see them, packs and what is skipped come out."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from packloom.config import DataConfig, LoaderConfig, PackingConfig
from packloom.errors import ConfigError, ReadError, SampleError, ShardError
from packloom.loader.stages import Stages
from packloom.packing import Cost
from packloom.report.next_moves import next_move
from packloom.report.samples import Chunk, Item, Samples, source_config, spread
from packloom.report.spec import DataSpec
from packloom.task_encoders import TaskEncoder
from packloom.types import EncodedSample


@dataclass(frozen=True, kw_only=True)
class Choice:
    """Which samples are shown, and how they are packed."""

    num_samples: int = 50
    keys: tuple[str, ...] = ()  # these instead
    pack_length: int = 8192
    segment_multiple: int = 1


@dataclass(frozen=True, kw_only=True, slots=True)
class Skipped:
    """A sample that training will leave out."""

    key: str
    place: str
    code: str
    reason: str
    next_move: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Pack:
    """Samples (their places in ``Gallery.samples``) that share a pack."""

    members: tuple[int, ...]


@dataclass(frozen=True, kw_only=True)
class Gallery:
    """What a page shows. The media of ``samples`` have their bytes."""

    data: DataSpec
    total: int | None  # samples of the dataset, where an index knows it
    choice: Choice
    encoder: TaskEncoder
    samples: tuple[EncodedSample, ...]
    places: tuple[str, ...]  # of each sample
    costs: tuple[Cost, ...]  # what each takes of a pack
    packs: tuple[Pack, ...]
    skipped: tuple[Skipped, ...]


def open_gallery(data: DataSpec, encoder: TaskEncoder, choice: Choice) -> Gallery:
    """Read, encode and load the samples, as training will; pack them in the order of the dataset.

    Raises ConfigError for a key that no sample has, ShardError where there is nothing to read.
    """
    config = DataConfig(
        source=source_config(data),
        packing=PackingConfig(pack_length=choice.pack_length, segment_multiple=choice.segment_multiple),
        loader=LoaderConfig(layout="packed"),
    )
    samples = Samples(data, config=config)
    stages = samples.stages(encoder)
    good: list[EncodedSample] = []
    places: list[str] = []
    skipped: list[Skipped] = []
    for item in _chosen(samples, choice):
        try:
            good.append(_loaded(stages, item))
            places.append(item.place)
        except SampleError as error:
            skipped.append(_skipped(error, item))
    if not good and not skipped:
        raise ShardError(f"{', '.join(data.path)} holds no samples to show")
    costs = tuple(map(stages.cost, good))
    return Gallery(
        data=data,
        total=samples.total,
        choice=choice,
        encoder=encoder,
        samples=tuple(good),
        places=tuple(places),
        costs=costs,
        packs=tuple(_packs(stages, costs)),
        skipped=tuple(skipped),
    )


def _chosen(samples: Samples, choice: Choice) -> Iterator[Item]:
    """The samples with the keys that were asked for, or some that are evenly spread; without an index the first."""
    if choice.keys:
        yield from _with_keys(samples, choice.keys)
        return
    if samples.feed is not None:
        yield from samples.read(Chunk(numbers=tuple(spread(samples.feed.num_samples, choice.num_samples))))
        return
    left = choice.num_samples
    for chunk in samples.chunks(0):
        for item in samples.read(chunk):
            if left == 0:
                return
            yield item
            left -= 1


def _with_keys(samples: Samples, keys: tuple[str, ...]) -> Iterator[Item]:
    wanted = set(keys)
    for chunk in samples.chunks(0):
        for item in samples.read(chunk):
            key = item.raw.key if isinstance(item.raw, ReadError) else _key_of(item)
            if key in wanted:
                wanted.discard(key)
                yield item
            if not wanted:
                return
    raise ConfigError(f"no sample has the key {sorted(wanted)[0]!r}: `packloom info` shows what is in the dataset")


def _key_of(item: Item) -> str:
    return "" if isinstance(item.raw, Exception) else str(item.raw["__key__"])


def _loaded(stages: Stages, item: Item) -> EncodedSample:
    """The sample with its media, which were decoded and processed once. Raises SampleError, ShardError."""
    if isinstance(item.raw, Exception):
        raise item.raw
    return stages.load([stages.encode(item.raw, epoch=0)])[0].sample


def _skipped(error: SampleError, item: Item) -> Skipped:
    return Skipped(
        key=error.key or _key_of(item),
        place=item.place,
        code=error.code,
        reason=error.reason,
        next_move=error.hint or next_move(error.code),
    )


def _packs(stages: Stages, costs: tuple[Cost, ...]) -> Iterator[Pack]:
    packer = stages.make_packer(None)
    for place, cost in enumerate(costs):
        yield from (Pack(members=tuple(group)) for group in packer.push(place, cost))
    yield from (Pack(members=tuple(group)) for group in packer.finish())
