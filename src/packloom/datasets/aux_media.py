"""The name of a medium in another dataset enters, its place and size leave; places enter, the bytes there leave."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from packloom.datasets.dataset import ShardDataset, open_dataset
from packloom.datasets.key_table import KeyTable, make_key_table
from packloom.datasets.naming import split_name
from packloom.errors import ConfigError, MediaError, ReadError, ShardError
from packloom.types import AuxPlace, Media, MediaKind

#: An alias is the first piece of a name, so it holds no slash, and can be taken for neither a url nor a data URI.
_ALIAS = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]*")


class AuxLibrary:
    """The datasets that samples name media of, each opened once however many aliases it has.

    Pickles with its key tables; forked workers share them.
    """

    def __init__(self) -> None:
        self._datasets: list[ShardDataset] = []
        self._tables: list[KeyTable] = []
        self._numbers: dict[str, int] = {}  # path → place in the list
        #: What a state must keep: "aux.<alias>" → fingerprint.
        self.facts: dict[str, str] = {}

    def shelf(self, paths: Mapping[str, str]) -> AuxShelf:
        """The datasets at ``paths`` under their aliases. Only manifests are read.

        Raises ConfigError for an alias that is none, ShardError for a dataset without an index.
        """
        return AuxShelf(library=self, numbers={alias: self._open(alias, path) for alias, path in paths.items()})

    def prepare(self) -> None:
        """Read the keys of all datasets: about a second per million samples. ``find`` does it where nobody did before.

        To be called before workers are started, so that they share the tables. Raises ShardError.
        """
        for dataset in self._datasets[len(self._tables) :]:
            try:
                self._tables.append(make_key_table(dataset))
            except ReadError as error:
                where = dataset.shard_path(0) if dataset.num_shards else "it"
                raise ShardError(f"the keys of the aux dataset with {where} cannot be read: {error}") from error

    def table(self, number: int) -> KeyTable:
        self.prepare()
        return self._tables[number]

    def dataset(self, number: int) -> ShardDataset:
        return self._datasets[number]

    def fetch(self, places: Iterable[AuxPlace]) -> dict[AuxPlace, bytes | ReadError]:
        """The bytes at each place, read once each, shard by shard in the order of their offsets."""
        found: dict[AuxPlace, bytes | ReadError] = {}
        wanted: dict[int, list[AuxPlace]] = {}
        for place in sorted(set(places)):
            wanted.setdefault(place.dataset, []).append(place)
        for number, group in wanted.items():
            raws = self._datasets[number].read_each([(place.position, (place.part,)) for place in group])
            for place, raw in zip(group, raws, strict=True):
                found[place] = raw if isinstance(raw, ReadError) else raw[place.part]
        return found

    def _open(self, alias: str, path: str) -> int:
        if not isinstance(alias, str) or not _ALIAS.fullmatch(alias):
            raise ConfigError(f"aux {alias!r} is no alias: use letters, digits, '_', '-' and '.', such as 'media'")
        if path not in self._numbers:
            try:
                dataset = open_dataset(path)
            except ShardError as error:
                raise ShardError(f"aux {alias!r}: {error}") from error
            self._numbers[path] = len(self._datasets)
            self._datasets.append(dataset)
        number = self._numbers[path]
        self._note(alias, self._datasets[number].fingerprint)
        return number

    def _note(self, alias: str, fingerprint: str) -> None:
        """Two sources may use one alias for different datasets: then the second is ``aux.<alias>.2``."""
        name, count = f"aux.{alias}", 1
        while self.facts.get(name, fingerprint) != fingerprint:
            count += 1
            name = f"aux.{alias}.{count}"
        self.facts[name] = fingerprint


@dataclass(frozen=True, kw_only=True)
class AuxShelf:
    """The aux datasets of one source by alias; a ``MediaFinder``.

    A name is ``<alias>/<key>.<part>``, e.g. ``media/000123.0.jpg``. Keys are looked up among those of the dataset and
    never reach a file system, whatever they hold.
    """

    library: AuxLibrary
    numbers: Mapping[str, int] = field(default_factory=dict)  # alias → dataset of the library

    def claims(self, name: str) -> bool:
        alias, slash, _ = name.partition("/")
        return bool(slash) and alias in self.numbers

    def find(self, name: str, kind: MediaKind) -> Media:
        """The medium of a name that ``claims`` knows. Its bytes come along only where the index tells no image size.

        Raises MediaError.
        """
        alias, _, rest = name.partition("/")
        number = self.numbers[alias]
        dataset = self.library.dataset(number)
        shard, index, part = self._look_up(name, alias, rest)
        place = AuxPlace(dataset=number, position=dataset.position(shard, index), part=part)
        try:
            size = dataset.image_size(shard, index, part) if kind == "image" else None
            data = b"" if size else dataset.read(shard, index, parts=(part,))[part]
        except ReadError as error:
            raise MediaError(f"{name}: {error.reason}", code=error.code, hint=error.hint) from error
        if not size and not data:
            raise MediaError(f"{name} has no bytes", code="media.unreadable", hint="write it again")
        return Media(kind=kind, name=name, data=data, aux=place, size=size)

    def _look_up(self, name: str, alias: str, rest: str) -> tuple[int, int, str]:
        """(shard, index, part); raises MediaError."""
        found = split_name(rest)
        if found is None or not found[1]:
            reason = f"{name!r} is no name of a medium in the aux dataset {alias!r}"
            hint = f"name one like '{alias}/000123.0.jpg': its key, a dot and its part"
            raise MediaError(reason, code="media.aux_name", hint=hint)
        key, part = found[0], found[1].lower()
        number = self.numbers[alias]
        try:
            shard, index = self.library.table(number).find(key)
            parts = self.library.dataset(number).part_names(shard, index)
        except ReadError as error:
            code = {"read.missing_key": "media.missing", "read.ambiguous_key": "media.ambiguous"}.get(error.code)
            reason = f"{name}: key {key!r} of the aux dataset {alias!r}: {error.reason}"
            raise MediaError(reason, code=code or error.code, hint=error.hint) from error
        if part not in parts:
            reason = (
                f"{name}: sample {key!r} of the aux dataset {alias!r} has no part {part!r}, only {', '.join(parts)}"
            )
            raise MediaError(reason, code="media.missing", hint="check the name")
        return shard, index, part
