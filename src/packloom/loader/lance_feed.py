"""A Lance dataset goes in, as it is; what each lane draws from it comes out, as from the shards it would become."""

from __future__ import annotations

import atexit
import os
import shutil
import tempfile
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
from typing_extensions import Unpack

from packloom.config import DataConfig
from packloom.datasets.convert.find import Found, find_in_place
from packloom.datasets.convert.lance_source import LanceReader, LanceSource
from packloom.datasets.convert.media import MediaReader
from packloom.datasets.convert.media_table import MediaTable
from packloom.datasets.convert.runners import LocalProcesses
from packloom.datasets.convert.sample import build_sample, media_values
from packloom.datasets.convert.source import SourceRow, digest
from packloom.datasets.manifest import make_fingerprint
from packloom.datasets.parts import encode_parts
from packloom.errors import ConfigError, ReadError, SampleError
from packloom.loader.feed import OrderedFeed, OrderSettings
from packloom.loader.lance_address import is_lance, parse_address
from packloom.types import RawSample


class LanceFeed(OrderedFeed):
    """The rows of one version of a dataset. Each process opens it for itself, when it first reads."""

    def __init__(self, found: Found, *, num_lanes: int, **settings: Unpack[OrderSettings]) -> None:
        if not isinstance(found.source, LanceSource):
            raise ConfigError(f"a Lance dataset is needed, got {found.source.kind}")
        self.source = found.source
        super().__init__(found.source.num_rows, _fingerprint(found), num_lanes=num_lanes, **settings)
        self._found = found
        self._opened: tuple[LanceReader, MediaReader] | None = None

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_opened": None}

    def read(self, sample: int) -> RawSample:
        return _raised(self._read([sample], self._columns)[0])

    def read_head(self, sample: int) -> RawSample:
        """As ``read``, but a JPEG of a blob column may end behind its header, which says how large the image is.

        Parts of which that may be so are named under ``"__heads__"``.
        """
        return _raised(self._read([sample], self._columns, heads=True)[0])

    def read_parts(self, samples: Sequence[int], parts: Sequence[str]) -> list[RawSample | ReadError]:
        """Only the columns of media are read, and the others where a part stands in the messages."""
        found = self._read(samples, self._media_columns)
        missing = [place for place, raw in enumerate(found) if isinstance(raw, ReadError) or set(parts) - set(raw)]
        if missing:
            whole = self._read([samples[place] for place in missing], self._columns)
            for place, raw in zip(missing, whole, strict=True):
                found[place] = raw
        return [_only(raw, parts) for raw in found]

    def place_of(self, sample: int) -> str:
        return f"{self.source.uri} row {sample}"

    def offset_of(self, sample: int) -> int | None:
        return None

    @property
    def _columns(self) -> list[str]:
        return self._found.columns.read if self._found.columns is not None else []

    @property
    def _media_columns(self) -> list[str]:
        return [name for _, name in self._found.columns.media] if self._found.columns is not None else []

    def _read(
        self, samples: Sequence[int], columns: Sequence[str], *, heads: bool = False
    ) -> list[RawSample | ReadError]:
        """The rows as the samples of shards that they would become, read in one go."""
        if self._opened is None:
            table = MediaTable(self._found.media_table) if self._found.media_table is not None else None
            self._opened = LanceReader(self.source), MediaReader(root=self._found.media_root, table=table)
        reader, media = self._opened
        rows, _ = reader.read(np.array(samples, dtype=np.int64), columns, heads=heads)
        media.expect(chain.from_iterable(media_values(row, self._found.columns) for row in rows))
        return [self._sample(row, media, heads=heads) for row in rows]

    def _sample(self, row: SourceRow, media: MediaReader, *, heads: bool) -> RawSample | ReadError:
        key = f"{row.number:09d}"
        try:
            sample = build_sample(row, self._found.columns, media, key=key)
            _, parts = encode_parts(sample, number=row.number)
        except SampleError as error:
            return ReadError(error.reason, key=key, code=error.code, hint=error.hint)
        raw: RawSample = {"__key__": key, "__url__": self.source.uri, **parts}
        media_parts = tuple(name for name in parts if name != "json")
        return {**raw, "__heads__": media_parts} if heads and self.source.blobs and media_parts else raw


def spawn_for_lance(config: DataConfig) -> DataConfig:
    """The config with spawned workers if its source is a Lance dataset. Raises ConfigError for forked ones."""
    if not is_lance(config.source.path) or not config.loader.num_workers:
        return config
    if config.loader.start_method not in (None, "spawn"):
        raise ConfigError(
            f"start_method {config.loader.start_method!r} cannot be used with Lance, whose threads do not live on in a"
            " forked process: leave it out"
        )
    return replace(config, loader=replace(config.loader, start_method="spawn"))


def open_lance_feed(config: DataConfig, *, count_lanes: Callable[[int], int], turn: int) -> LanceFeed:
    """The feed of the dataset that the source names. With workers it is looked at in a spawned process only.

    Raises ShardError for what cannot be opened, ConfigError where its columns are no conversations with their media.
    """
    source = config.source
    stated = [name for name in ("index_dir", "split_part", "aux") if getattr(source, name)]
    if stated:
        raise ConfigError(f"{' and '.join(stated)} mean nothing to the Lance dataset {source.path}: leave them out")
    path, settings = parse_address(str(source.path))
    call = (path, settings, _scratch())
    if config.loader.num_workers:
        with closing(LocalProcesses(1)) as process:
            found = next(process.run(find_in_place, [call]))
    else:
        found = find_in_place(call)
    return LanceFeed(
        found,
        num_lanes=count_lanes(found.source.num_rows),
        seed=source.seed,
        shuffle=source.shuffle,
        block=source.shuffle_block,
        window=source.shuffle_window,
        turn=turn,
    )


def _fingerprint(found: Found) -> str:
    """Of what decides the samples: rows, columns and the media table; not of files that rows name."""
    table = found.media_table.identity if found.media_table is not None else None
    columns = (found.columns.fields, found.columns.media, found.columns.kept) if found.columns is not None else None
    return make_fingerprint([digest(found.source.identity, columns, table)])


def _scratch() -> Path:
    """A folder for tables of row numbers and keys, which goes with this process: workers read them too."""
    folder, owner = tempfile.mkdtemp(prefix="packloom-lance-"), os.getpid()

    def remove() -> None:
        if os.getpid() == owner:
            shutil.rmtree(folder, ignore_errors=True)

    atexit.register(remove)
    return Path(folder)


def _raised(found: RawSample | ReadError) -> RawSample:
    if isinstance(found, ReadError):
        raise found
    return found


def _only(raw: RawSample | ReadError, parts: Sequence[str]) -> RawSample | ReadError:
    if isinstance(raw, ReadError):
        return raw
    missing = sorted(set(parts) - set(raw))
    if missing:  # a file that the row names is of another format than before
        reason = f"has no part {missing[0]!r} any more"
        return ReadError(reason, key=raw["__key__"], code="read.missing_part", hint="leave files as they are")
    return {name: raw[name] for name in ("__key__", "__url__", *parts)}
