"""Raw samples enter, a folder of WebDataset tar shards with reproducible bytes leaves."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import Any
from uuid import uuid4

from packloom.datasets.files import write_file
from packloom.datasets.index import ShardIndex
from packloom.datasets.manifest import (
    INDEX_SUFFIX,
    MANIFEST_NAME,
    ShardEntry,
    index_path,
    index_root,
    shard_entry,
    write_manifest,
)
from packloom.datasets.parts import encode_parts
from packloom.datasets.tar_file import TarFile
from packloom.datasets.tar_header import archive_bytes, member_bytes
from packloom.errors import ConfigError, SampleError, ShardError

SHARD_NAME = "shard-{:06d}.tar"
#: In seconds.
_YEAR_2000, _TWENTY_YEARS = 946_684_800, 20 * 365 * 86_400
_SHARD_GLOB = "shard-[0-9][0-9][0-9][0-9][0-9][0-9]*.tar"


def write_shards(
    samples: Iterable[Mapping[str, Any]],
    folder: str | Path,
    *,
    samples_per_shard: int = 1000,
    max_shard_bytes: int = 1 << 30,
    overwrite: bool = False,
) -> list[Path]:
    """Write ``shard-000000.tar``, ... into ``folder`` and return their paths in order.

    A sample is ``{"__key__": "000123", "json": {...} or bytes, "0.jpg": bytes, ...}``. A dict under ``json`` is written
    as UTF-8 with its keys in their own order, a str part as UTF-8; part names are lower-cased, as every reader does.
    Other names in double underscores (``__url__``) are a reader's notes and are not written. A shard ends before it
    has more than ``samples_per_shard`` samples or ``max_shard_bytes`` bytes; one sample over that gets its own shard.

    The index goes into ``.packloom/`` beside the shards, so that ``open_dataset(folder)`` works at once.

    Equal samples give equal bytes. Each shard is written under a hidden name, synced and then renamed, so what lies
    under a final name is whole; after an error the shards finished before it stay, and nothing else. With
    ``overwrite=True`` the old set is replaced at the very end, so it may be the source of ``samples``.

    Raises SampleError (with the key) for a sample that could not be read back as it is, ShardError for a folder that
    already holds shards or for no samples at all, ConfigError for a limit below 1.
    """
    for name, value in (("samples_per_shard", samples_per_shard), ("max_shard_bytes", max_shard_bytes)):
        if value < 1:
            raise ConfigError(f"{name} must be at least 1, got {value}")
    target = _prepare_folder(Path(folder), overwrite=overwrite)
    shards = _ShardSet(target, samples_per_shard, max_shard_bytes, rename_at_end=overwrite)
    seen: set[str] = set()
    try:
        for number, sample in enumerate(samples):
            key, parts = encode_parts(sample, number=number)
            if key in seen:
                hint = "give every sample of a set its own key"
                raise SampleError("this key was already written", key=key, code="write.duplicate_key", hint=hint)
            seen.add(key)
            shards.add(key, parts)
        return shards.finish()
    finally:
        shards.discard_unfinished()


def write_piece(
    samples: Iterable[tuple[str, Mapping[str, bytes]]],
    folder: Path,
    *,
    name: str,
    samples_per_shard: int,
    max_shard_bytes: int,
) -> list[ShardEntry]:
    """Write one piece of a larger set as ``name.format(0)``, ``name.format(1)``, ... with their indexes, no manifest.

    ``samples`` are (key, parts) as ``encode_parts`` gives them. Several processes may write pieces into one folder,
    even the same piece: hidden names are their own. Equal samples give shards *and indexes* of equal bytes.
    """
    shards = _ShardSet(folder, samples_per_shard, max_shard_bytes, rename_at_end=False, name=name, is_piece=True)
    try:
        for key, parts in samples:
            shards.add(key, parts)
        return shards.close()
    finally:
        shards.discard_unfinished()


def _prepare_folder(folder: Path, *, overwrite: bool) -> Path:
    """Create the folder; refuse one that holds tar files that this call may not replace."""
    if folder.exists() and not folder.is_dir():
        raise ShardError(f"{folder} is a file: name a folder to write shards into")
    folder.mkdir(parents=True, exist_ok=True)
    ours = set(folder.glob(_SHARD_GLOB))
    foreign = sorted(path.name for path in folder.glob("*.tar") if path not in ours)
    if foreign:
        raise ShardError(
            f"{folder} holds {len(foreign)} other tar file(s), e.g. {foreign[0]}, which a reader of the folder would"
            " mix with the new shards: write into an empty folder"
        )
    if ours and not overwrite:
        raise ShardError(
            f"{folder} already holds {len(ours)} shard(s): pass overwrite=True to replace them, or name another folder"
        )
    root = Path(index_root(str(folder)))
    for leftover in (*folder.glob(".shard-*.partial"), *root.glob(".shard-*.partial")):  # of a run that was killed
        leftover.unlink()
    if not ours:  # of shards that somebody removed
        root.joinpath(MANIFEST_NAME).unlink(missing_ok=True)
    return folder


class _ShardSet:
    """The shards of one call: the open one, those that wait for their final name, and those that have it."""

    def __init__(
        self,
        folder: Path,
        max_samples: int,
        max_bytes: int,
        *,
        rename_at_end: bool,
        name: str = SHARD_NAME,
        is_piece: bool = False,
    ) -> None:
        self.folder = folder
        self.name = name
        self.is_piece = is_piece
        self.suffix = f"{uuid4().hex}.partial" if is_piece else "partial"
        self.max_samples = max_samples
        self.max_bytes = max_bytes
        self.rename_at_end = rename_at_end
        self.open: TarFile | None = None
        self.index_root = Path(index_root(str(folder)))
        self.waiting: list[list[tuple[Path, Path]]] = []  # per shard: (hidden, final) of the shard and of its index
        self.entries: list[ShardEntry] = []
        self.done: list[Path] = []

    def add(self, key: str, parts: Mapping[str, bytes]) -> None:
        size = sum(member_bytes(f"{key}.{name}", len(data)) for name, data in parts.items())
        shard = self.open
        if shard is not None and (
            shard.num_samples == self.max_samples or archive_bytes(shard.num_bytes + size) > self.max_bytes
        ):
            self._close()
            shard = None
        if shard is None:
            name = self.name.format(len(self.waiting) + len(self.done))
            shard = self.open = TarFile(self.folder / f".{name}.{self.suffix}", self.folder / name)
        shard.write(key, parts)

    def finish(self) -> list[Path]:
        if self.open is None:
            raise ShardError(f"no samples were given, so no shard was written into {self.folder}")
        self._close()
        if self.rename_at_end:
            self._rename()
        write_manifest(str(self.index_root), self.entries)
        return self.done

    def close(self) -> list[ShardEntry]:
        """Finish the open shard, if there is one; nothing is written beside shards and indexes."""
        self._close()
        return self.entries

    def discard_unfinished(self) -> None:
        """Remove every file that did not get its final name; after ``finish`` there is none."""
        for hidden, _ in chain.from_iterable(self.waiting):
            hidden.unlink(missing_ok=True)
        if self.open is not None:
            self.open.discard()

    def _close(self) -> None:
        if self.open is not None:
            hidden, final = self.open.hidden, self.open.final
            index = self.open.close()
            self.waiting.append([(hidden, final)])
            self.open = None
            self._write_index(index, hidden, final)
        if not self.rename_at_end:
            self._rename()

    def _rename(self) -> None:
        if self.rename_at_end:
            self._remove_old_set()
        while self.waiting:
            for hidden, final in self.waiting[0]:
                os.replace(hidden, final)
            self.done.append(self.waiting[0][0][1])
            del self.waiting[0]
        _sync_folder(self.folder)

    def _write_index(self, index: ShardIndex, hidden: Path, final: Path) -> None:
        target = Path(index_path(str(self.index_root), final.name))
        hidden_target = target.with_name(f".{target.name}.{self.suffix}")
        if self.is_piece:
            index = _set_steady_time(hidden, index)
        self.waiting[-1].append((hidden_target, target))
        write_file(str(hidden_target), index.to_bytes())
        self.entries.append(shard_entry(index, final.name))

    def _remove_old_set(self) -> None:
        """The manifest first: from then on nobody takes new shards for old ones. The old set may be the longer one."""
        self.index_root.joinpath(MANIFEST_NAME).unlink(missing_ok=True)
        new = {final for _, final in chain.from_iterable(self.waiting)}
        old = {*self.folder.glob(_SHARD_GLOB), *self.index_root.glob(_SHARD_GLOB + INDEX_SUFFIX)}
        for stale in old - new:
            stale.unlink()


def _set_steady_time(shard: Path, index: ShardIndex) -> ShardIndex:
    """Give the shard a time that follows from its content, so that its index, which notes the time, does so too.

    It differs where content differs, since copying tools take files of equal size and time for equal.
    """
    seconds = _YEAR_2000 + int(index.sha256[:8], 16) % _TWENTY_YEARS
    os.utime(shard, (seconds, seconds))
    return replace(index, mtime_ns=shard.stat().st_mtime_ns)


def _sync_folder(folder: Path) -> None:
    """Make the renames last through a power cut, where the system can open a folder."""
    if os.name == "nt":
        return
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
