"""The name of an indexed dataset goes in; what lies in it, counted, comes out."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from packloom.datasets.access import ReadSettings
from packloom.datasets.aux_media import AuxLibrary, AuxShelf
from packloom.datasets.dataset import ShardDataset, open_dataset
from packloom.datasets.files import Files, status
from packloom.datasets.folders import check_index_dir, select_shards
from packloom.datasets.sources import find_sources
from packloom.errors import SampleError
from packloom.image_size import image_size
from packloom.report.histogram import Histogram, histogram
from packloom.report.samples import spread
from packloom.report.spec import DataSpec
from packloom.task_encoders.cookers import cook
from packloom.types import ChatSample, RawSample


@dataclass(frozen=True, kw_only=True, slots=True)
class PartInfo:
    """All parts of one name."""

    name: str
    count: int
    num_bytes: int


@dataclass(frozen=True, kw_only=True)
class Info:
    """What lies in a dataset. Shards, samples, parts and sizes are exact; talks are those of ``num_read`` samples."""

    path: str
    fingerprint: str
    num_shards: int
    num_bytes: int
    num_samples: int
    parts: tuple[PartInfo, ...]
    widths: tuple[int, ...]  # of each image, in pixels
    heights: tuple[int, ...]
    num_read: int
    roles: dict[str, int]  # role → messages
    turns: dict[int, int]  # assistant turns → samples
    images: dict[int, int]  # images → samples
    problems: dict[str, int]  # code → samples, or shards

    @property
    def megapixels(self) -> Histogram:
        """Images by area, in millions of pixels."""
        return histogram([w * h / 1e6 for w, h in zip(self.widths, self.heights, strict=True)], max_bins=10)

    @property
    def sides(self) -> Histogram:
        """Images by their longer side, in pixels."""
        return histogram([max(pair) for pair in zip(self.widths, self.heights, strict=True)], max_bins=10)

    def as_dict(self) -> dict[str, Any]:
        """Plain data for ``--json``."""
        return {
            "path": self.path,
            "fingerprint": self.fingerprint,
            "num_shards": self.num_shards,
            "num_bytes": self.num_bytes,
            "num_samples": self.num_samples,
            "parts": {part.name: {"count": part.count, "num_bytes": part.num_bytes} for part in self.parts},
            "num_images": len(self.widths),
            "longer_side": self.sides.as_dict(),
            "megapixels": self.megapixels.as_dict(),
            "num_read": self.num_read,
            "roles": self.roles,
            "turns": {str(number): count for number, count in sorted(self.turns.items())},
            "images": {str(number): count for number, count in sorted(self.images.items())},
            "problems": self.problems,
        }


def describe_dataset(data: DataSpec, *, limit: int | None = None) -> Info:
    """Count what the index of a dataset lists, and read the talks of all samples, or of ``limit`` evenly spread.

    No image is decoded. Of shards that Energon prepared the whole samples are read. Raises ShardError for a dataset
    without an index, and for one that it does not fit.
    """
    dataset = open_dataset(data.path, index_dir=data.index_dir, split_part=data.split_part)
    library = AuxLibrary()
    reader = _Reader(dataset, library.shelf(dict(data.aux)) if data.aux else None)
    tally = _Tally()
    for shard, members in enumerate(_members(data)):
        tally.num_bytes += status(dataset.shard_path(shard)).size
        for index, found in members:
            tally.add_parts(found or reader.parts(shard, index))
    tally.problems.update(fault.code for _, fault in dataset.faults())
    numbers = spread(len(dataset), limit)
    for number in numbers:
        tally.add_talk(reader, number)
    parts = [PartInfo(name=name, count=n, num_bytes=tally.part_bytes[name]) for name, n in tally.parts.most_common()]
    return Info(
        path=", ".join(data.path),
        fingerprint=dataset.fingerprint,
        num_shards=dataset.num_shards,
        num_bytes=tally.num_bytes,
        num_samples=len(dataset),
        parts=tuple(parts),
        widths=tuple(tally.widths),
        heights=tuple(tally.heights),
        num_read=len(numbers),
        roles=dict(tally.roles.most_common()),
        turns=dict(tally.turns),
        images=dict(tally.images),
        problems=dict(tally.problems.most_common()),
    )


#: Name, bytes, width and height of one part; 0 for what is no image.
_Part = tuple[str, int, int, int]


def _members(data: DataSpec) -> Iterator[Iterator[tuple[int, list[_Part]]]]:
    """Of each shard, the parts of each sample; empty where the index does not list them."""
    selections = select_shards(data.path)
    index_dir = check_index_dir(selections, data.index_dir)
    files = Files()
    for source in find_sources(selections, index_dir=index_dir, split_part=data.split_part):
        shard = source.open(files, ReadSettings()) if source.num_samples else None
        plans = (shard.plan(index, None) for index in range(source.num_samples)) if shard is not None else iter(())
        yield (
            (index, [(m.part, m.size, m.width, m.height) for m, _ in plan.pieces]) for index, plan in enumerate(plans)
        )


class _Reader:
    """Samples of an opened dataset, without the bytes of their media where the index knows enough of them."""

    def __init__(self, dataset: ShardDataset, aux: AuxShelf | None) -> None:
        self._dataset = dataset
        self._aux = aux

    def parts(self, shard: int, index: int) -> list[_Part]:
        """The parts of a sample that has to be read for it; none of one that cannot be."""
        try:
            raw = self._dataset.read(shard, index)
        except SampleError:
            return []  # its talk cannot be read either, and is counted as a problem there
        return [(name, len(data), *image_size(data)) for name, data in raw.items() if isinstance(data, bytes)]

    def talk(self, number: int) -> ChatSample:
        """The conversation; its media have no bytes. Raises SampleError."""
        shard, index = self._dataset.locate(number)
        names = self._dataset.part_names(shard, index)
        wanted = [name for name in names if name in ("json", "txt")]
        raw: RawSample = self._dataset.read(shard, index, parts=wanted)
        media = {name: b"" for name in names if name not in wanted}
        return cook({**raw, **media} if self._aux is None else {**raw, **media, "__aux__": self._aux})


@dataclass(kw_only=True)
class _Tally:
    """Counts that grow."""

    num_bytes: int = 0
    parts: Counter[str] = field(default_factory=Counter)
    part_bytes: Counter[str] = field(default_factory=Counter)
    widths: list[int] = field(default_factory=list)
    heights: list[int] = field(default_factory=list)
    roles: Counter[str] = field(default_factory=Counter)
    turns: Counter[int] = field(default_factory=Counter)
    images: Counter[int] = field(default_factory=Counter)
    problems: Counter[str] = field(default_factory=Counter)

    def add_parts(self, found: list[_Part]) -> None:
        """Count the parts of one sample."""
        for name, size, width, height in found:
            self.parts[name] += 1
            self.part_bytes[name] += size
            if width:
                self.widths.append(width)
                self.heights.append(height)

    def add_talk(self, reader: _Reader, number: int) -> None:
        """Count the messages of one sample."""
        try:
            chat = reader.talk(number)
        except SampleError as error:
            self.problems[error.code] += 1
            return
        self.roles.update(message.role for message in chat.messages)
        self.turns[sum(message.role == "assistant" for message in chat.messages)] += 1
        self.images[sum(medium.kind == "image" for medium in chat.media)] += 1
