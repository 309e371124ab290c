"""The shards of a folder enter as a list with sizes and digests, one small JSON file and a fingerprint leave."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from packloom.datasets.files import read_file, write_file
from packloom.datasets.index import ShardIndex
from packloom.datasets.paths import join
from packloom.errors import ShardError

MANIFEST_VERSION = 1
#: The folder of the index within a folder of shards.
INDEX_FOLDER = ".packloom"
MANIFEST_NAME = "manifest.json"
INDEX_SUFFIX = ".index"


@dataclass(frozen=True, kw_only=True, slots=True)
class ShardEntry:
    """One shard of a manifest."""

    name: str  # relative to the folder of the shards
    num_samples: int  # good ones
    num_faults: int  # samples that are left out, and damage to the shard
    num_bytes: int
    sha256: str  # of the shard's content

    @property
    def identity(self) -> str:
        """What the samples of the shard depend on: its content, and how many of it were found good."""
        return f"{self.sha256} {self.num_samples}"


@dataclass(frozen=True, kw_only=True, slots=True)
class Manifest:
    """The shards of one folder in reading order."""

    shards: tuple[ShardEntry, ...]

    @property
    def fingerprint(self) -> str:
        """A digest of the content: equal for the same shards in the same order, whatever their names and folder."""
        return make_fingerprint(entry.identity for entry in self.shards)

    @property
    def num_samples(self) -> int:
        return sum(entry.num_samples for entry in self.shards)

    def to_json(self) -> str:
        """One line per shard, so that two manifests can be compared by eye."""
        lines = ",\n".join("  " + json.dumps(asdict(entry)) for entry in self.shards)
        head = (
            f'{{"version": {MANIFEST_VERSION}, "fingerprint": "{self.fingerprint}", "num_samples": {self.num_samples}'
        )
        return f'{head}, "shards": [\n{lines}\n]}}\n'

    @classmethod
    def from_json(cls, text: str | bytes, *, where: str) -> Manifest:
        """Raises ShardError for what is no manifest of this version, or was changed by hand."""
        try:
            data = json.loads(text)
            version = data["version"]
            manifest = cls(shards=tuple(_entry(item) for item in data["shards"]) if version == MANIFEST_VERSION else ())
            stated = data["fingerprint"]
        except (ValueError, KeyError, TypeError, RecursionError) as error:
            raise ShardError(f"{where} is damaged: {type(error).__name__}: {error}") from error
        if version != MANIFEST_VERSION:
            raise ShardError(f"{where} has version {version}, this packloom reads {MANIFEST_VERSION}")
        if manifest.fingerprint != stated:
            raise ShardError(
                f"{where} was changed: it states fingerprint {stated}, its shards give {manifest.fingerprint}"
            )
        return manifest


def make_fingerprint(identities: Iterable[str]) -> str:
    """A digest of the identities of shards in order."""
    digest = hashlib.sha256(b"packloom dataset 1\n")
    for identity in identities:
        digest.update(identity.encode() + b"\n")
    return digest.hexdigest()


def index_root(folder: str) -> str:
    """Where the index of a folder of shards lies, unless its user names another place."""
    return join(folder, INDEX_FOLDER)


def index_path(root: str, shard_name: str) -> str:
    """The index file of a shard."""
    return join(root, shard_name + INDEX_SUFFIX)


def shard_entry(index: ShardIndex, name: str) -> ShardEntry:
    """The line of a manifest for a shard."""
    return ShardEntry(
        name=name,
        num_samples=index.num_samples,
        num_faults=len(index.faults),
        num_bytes=index.shard_bytes,
        sha256=index.sha256,
    )


def read_manifest(root: str, *, next_move: str) -> Manifest | None:
    """The manifest in a folder, None if there is none. Raises ShardError for one that cannot be used."""
    path = join(root, MANIFEST_NAME)
    try:
        return Manifest.from_json(read_file(path), where=path)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        raise ShardError(f"the manifest {path} cannot be read: {error}") from error
    except ShardError as error:
        raise ShardError(f"{error}: {next_move}") from error


def write_manifest(root: str, shards: Sequence[ShardEntry]) -> Manifest:
    """Write the manifest of these shards, sorted by name as they are read; raises OSError."""
    manifest = Manifest(shards=tuple(sorted(shards, key=lambda entry: entry.name)))
    write_file(join(root, MANIFEST_NAME), manifest.to_json().encode())
    return manifest


def _entry(item: Any) -> ShardEntry:
    entry = ShardEntry(
        name=str(item["name"]),
        num_samples=int(item["num_samples"]),
        num_faults=int(item["num_faults"]),
        num_bytes=int(item["num_bytes"]),
        sha256=str(item["sha256"]),
    )
    if min(entry.num_samples, entry.num_faults, entry.num_bytes) < 0:
        raise ValueError(f"a negative number at shard {entry.name}")
    return entry
