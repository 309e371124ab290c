"""The folders of a dataset enter, one small description per shard leaves, checked against what lies in the folders."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass

from packloom.datasets.access import FilteredShard, IndexedShard, OpenShard, ReadSettings, ShardSource
from packloom.datasets.energon_meta import EnergonMeta, read_energon_meta
from packloom.datasets.energon_prepared import EnergonSource, digest_offsets
from packloom.datasets.files import Files, list_tars, read_file, status
from packloom.datasets.folders import Selection
from packloom.datasets.index import ShardIndex
from packloom.datasets.manifest import Manifest, ShardEntry, index_path, index_root, read_manifest
from packloom.datasets.paths import is_url, join
from packloom.errors import ConfigError, ReadError, ShardError


def find_sources(
    selections: Sequence[Selection], *, index_dir: str | None = None, split_part: str | None = None
) -> list[ShardSource]:
    """The shards of the selections in order. Raises ShardError as ``open_dataset`` says."""
    sources = [source for item in selections for source in _find(item, index_dir, split_part)]
    seen: set[str] = set()
    for source in sources:
        if source.path in seen:
            raise ShardError(f"shard {source.path} is listed twice, so its samples would count twice: list it once")
        seen.add(source.path)
    return sources


@dataclass(frozen=True, kw_only=True, slots=True)
class IndexedSource:
    """A shard that a manifest of ours lists."""

    path: str
    index_path: str
    entry: ShardEntry
    next_move: str

    @property
    def num_samples(self) -> int:
        return self.entry.num_samples

    @property
    def num_faults(self) -> int:
        return self.entry.num_faults

    @property
    def identity(self) -> str:
        return self.entry.identity

    def faults(self) -> tuple[ReadError, ...]:
        return self._read_index().faults if self.num_faults else ()

    def open(self, files: Files, settings: ReadSettings) -> OpenShard:
        """Load the index. Raises OSError if the shard cannot be reached, ShardError if the index does not fit it.

        A shard that was cut off or overwritten since it was indexed opens all the same where every part that is read is
        compared with its checksum: then it loses just the samples that are damaged, and each of them is reported.
        """
        found = status(self.path)
        index = self._read_index()
        if found.size > index.shard_bytes or (found.size < index.shard_bytes and not settings.verify):
            raise self._stale(f"it has {found.size} bytes, and had {index.shard_bytes} when it was indexed")
        shard = IndexedShard(self.path, index, settings, next_move=self.next_move)
        if found.mtime_ns not in (None, index.mtime_ns) and not settings.verify:
            self._spot_check(files, index)
        return shard

    def _read_index(self) -> ShardIndex:
        try:
            index = ShardIndex.from_bytes(read_file(self.index_path), where=self.index_path)
        except OSError as error:
            raise ShardError(f"the index {self.index_path} cannot be read: {error}: {self.next_move}") from error
        except ShardError as error:
            raise ShardError(f"{error}: {self.next_move}") from error
        if (index.sha256, index.num_samples) != (self.entry.sha256, self.entry.num_samples):
            raise ShardError(f"{self.index_path} and the manifest describe different shards: {self.next_move}")
        return index

    def _spot_check(self, files: Files, index: ShardIndex) -> None:
        """Another time and the same size is a copy or an edit: three samples tell."""
        shard = IndexedShard(self.path, index, ReadSettings(), next_move=self.next_move)
        for place in sorted({0, index.num_samples // 2, index.num_samples - 1}) if index.num_samples else ():
            try:
                plan = shard.plan(place, None)
                shard.assemble(plan, files.read_ranges(plan.ranges))
            except ReadError as error:
                raise self._stale(f"its time has changed and so has its content ({error.reason})") from error

    def _stale(self, reason: str) -> ShardError:
        return ShardError(f"shard {self.path} is not what was indexed: {reason}: {self.next_move}")


@dataclass(frozen=True, kw_only=True, slots=True)
class FilteredSource:
    """A shard of which some samples are left out."""

    base: ShardSource
    keep: tuple[int, ...]
    excluded: frozenset[str]

    @property
    def path(self) -> str:
        return self.base.path

    @property
    def num_samples(self) -> int:
        return len(self.keep)

    @property
    def num_faults(self) -> int:
        return self.base.num_faults

    @property
    def identity(self) -> str:
        return f"{self.base.identity} without {hashlib.sha256(repr(sorted(self.excluded)).encode()).hexdigest()}"

    def faults(self) -> tuple[ReadError, ...]:
        return self.base.faults()

    def open(self, files: Files, settings: ReadSettings) -> OpenShard:
        return FilteredShard(self.base.open(files, settings), self.keep)


def _find(item: Selection, index_dir: str | None, split_part: str | None) -> Sequence[ShardSource]:
    root = index_dir or index_root(item.folder)
    next_move = f"run `packloom index {item.folder}{f' --index-dir {index_dir}' if index_dir else ''}`"
    manifest = read_manifest(root, next_move=next_move)
    meta = read_energon_meta(item.folder, split_part) if item.names is None else None
    if meta is not None:
        return _energon_sources(item.folder, meta, manifest, root, next_move)
    if split_part is not None:
        raise ConfigError(f"{item.folder} was not prepared by Energon, so it has no split part {split_part!r}")
    if manifest is None:
        raise ShardError(f"{item.folder} has no index in {root}: {next_move}")
    names = [entry.name for entry in manifest.shards] if item.names is None else list(item.names)
    sources = _indexed_sources(item.folder, names, manifest, root, next_move)
    if item.names is None and not is_url(item.folder):
        _check_listing(item.folder, names, next_move)
    return sources


def _indexed_sources(
    folder: str, names: Sequence[str], manifest: Manifest, root: str, next_move: str
) -> list[IndexedSource]:
    entries = {entry.name: entry for entry in manifest.shards}
    missing = [name for name in names if name not in entries]
    if missing:
        raise ShardError(f"{len(missing)} shard(s) of {folder}, e.g. {missing[0]}, have no index: {next_move}")
    if not names:
        raise ShardError(f"the manifest of {folder} lists no shards: {next_move}")
    return [
        IndexedSource(
            path=join(folder, name), index_path=index_path(root, name), entry=entries[name], next_move=next_move
        )
        for name in names
    ]


def _check_listing(folder: str, names: Sequence[str], next_move: str) -> None:
    """Shards that came or went since the index was made would otherwise be left out, or fail in the middle of a run."""
    try:
        there = set(list_tars(folder))
    except OSError as error:
        raise ShardError(f"folder {folder} cannot be listed: {error.strerror or error}") from error
    added, gone = sorted(there - set(names)), sorted(name for name in set(names) - there if "/" not in name)
    if added:
        raise ShardError(f"{len(added)} shard(s) of {folder}, e.g. {added[0]}, have no index: {next_move}")
    if gone:
        raise ShardError(f"{len(gone)} indexed shard(s), e.g. {gone[0]}, are no longer in {folder}: {next_move}")


def _energon_sources(
    folder: str, meta: EnergonMeta, manifest: Manifest | None, root: str, next_move: str
) -> list[ShardSource]:
    """Energon says which shards and samples; where there is an index of ours, samples are read through it."""
    names = list(meta.counts)
    sources: list[ShardSource] = []
    if manifest is not None:
        sources += _indexed_sources(folder, names, manifest, root, next_move)
    else:
        sources += _offset_sources(folder, meta, f"prepare the folder again with Energon, or {next_move}")
    return [_without(source, meta.excluded.get(name)) for name, source in zip(names, sources, strict=True)]


def _offset_sources(folder: str, meta: EnergonMeta, next_move: str) -> list[EnergonSource]:
    paths = [join(folder, name) for name in meta.counts]
    digest = f"{meta.uuid} {digest_offsets(paths, next_move=next_move)}"
    return [
        EnergonSource(path=path, name=name, num_samples=count, folder_digest=digest, next_move=next_move)
        for path, (name, count) in zip(paths, meta.counts.items(), strict=True)
    ]


def _without(source: ShardSource, excluded: frozenset[str] | None) -> ShardSource:
    """The shard without the excluded keys; its keys are read for that, all of them."""
    if not excluded:
        return source
    try:
        keys = source.open(Files(), ReadSettings()).keys()
        keep = tuple(place for place, key in enumerate(keys) if key not in excluded)
    except (OSError, ReadError) as error:
        raise ShardError(
            f"the keys of shard {source.path}, of which some are excluded, cannot be read: {error}"
        ) from error
    return FilteredSource(base=source, keep=keep, excluded=excluded)
