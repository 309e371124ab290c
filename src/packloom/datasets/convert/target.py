"""The folder of a conversion enters, checked and locked for one run; its plan is compared, its shards are verified."""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import shutil
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType

from packloom.datasets.convert.plan import Plan, differences
from packloom.datasets.files import write_file
from packloom.datasets.manifest import INDEX_SUFFIX, MANIFEST_NAME, ShardEntry, index_root, read_manifest
from packloom.errors import ShardError

PLAN_NAME = "plan.json"
QUARANTINE_NAME = "quarantine.jsonl"
_SHARDS = "shard-[0-9][0-9][0-9][0-9][0-9][0-9]*.tar"


class Target:
    """The folder that shards are written into. As a context it holds a lock, which ends with the process."""

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        self.folder = Path(folder)
        self.index_root = Path(index_root(str(self.folder)))
        self.state = self.index_root / "convert"  # plan and journal
        self.scratch = self.state / "scratch"
        self.quarantine = self.folder / QUARANTINE_NAME
        self._lock = -1

    def __enter__(self) -> Target:
        if self.folder.exists() and not self.folder.is_dir():
            raise ShardError(f"{self.folder} is a file: name a folder to write shards into")
        self.state.mkdir(parents=True, exist_ok=True)
        self._lock = os.open(self.state / "lock", os.O_RDWR | os.O_CREAT, 0o644)
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            os.close(self._lock)
            raise ShardError(f"another conversion is writing into {self.folder}: wait for it") from error
        except OSError:  # a file system without locks: two runs at once would only write the same bytes twice
            pass
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        shutil.rmtree(self.scratch, ignore_errors=True)
        os.close(self._lock)
        self._lock = -1

    def prepare(self, source: str, *, overwrite: bool) -> None:
        """Refuse a folder with shards that are not of a conversion; remove what a killed run left half done."""
        here = self.folder.resolve()
        place = Path(source).resolve()
        if place == here or here in place.parents:
            raise ShardError(f"the source {source} lies in the target {self.folder}: name another folder")
        ours = set(self.folder.glob(_SHARDS))
        foreign = sorted(path.name for path in self.folder.glob("*.tar") if path not in ours)
        if foreign or (ours and not overwrite and not (self.state / PLAN_NAME).exists()):
            name = (foreign or sorted(path.name for path in ours))[0]
            raise ShardError(f"{self.folder} holds shards of another origin, e.g. {name}: name an empty folder")
        for leftover in (*self.folder.glob(".*.partial"), *self.index_root.rglob(".*.partial")):
            leftover.unlink(missing_ok=True)
        shutil.rmtree(self.scratch, ignore_errors=True)
        self.scratch.mkdir()

    def agree(self, plan: Plan, *, overwrite: bool) -> None:
        """Write the plan, or compare it with that of an earlier run. Raises ShardError if they differ.

        Only here is an earlier conversion removed, once it is known that the new one can start.
        """
        if overwrite:
            self._remove_all()
        path = self.state / PLAN_NAME
        if not path.exists():
            write_file(str(path), plan.to_json())
            return
        try:
            earlier = json.loads(path.read_bytes())
        except ValueError as error:
            raise ShardError(f"{path} is damaged: {error}: start anew with --overwrite") from error
        found = differences(earlier, json.loads(plan.to_json()))
        if found:
            raise ShardError(
                f"{self.folder} holds a conversion that differs from this one in {'; '.join(found[:5])}: use the same"
                " source and settings to go on, another folder, or --overwrite"
            )

    def is_finished(self, shards: Sequence[ShardEntry]) -> bool:
        """Whether the manifest, which is written last, is there and names these shards."""
        try:
            manifest = read_manifest(str(self.index_root), next_move="")
        except ShardError:  # to be written anew
            return False
        return manifest is not None and manifest.shards == tuple(sorted(shards, key=lambda entry: entry.name))

    def begin(self) -> None:
        """Take the manifest away while shards are missing, so that nobody takes a part for the whole."""
        (self.index_root / MANIFEST_NAME).unlink(missing_ok=True)

    def _remove_all(self) -> None:
        self.begin()
        for path in (*self.folder.glob(_SHARDS), *self.index_root.glob(_SHARDS + INDEX_SUFFIX), self.quarantine):
            path.unlink(missing_ok=True)
        for path in self.state.iterdir():
            if path.name != "lock" and path.is_file():
                path.unlink()


def verify_shard(call: tuple[Path, ShardEntry]) -> str | None:
    """Read a shard; None if its bytes are those that were written, else its name."""
    folder, entry = call
    digest = hashlib.sha256()
    with (folder / entry.name).open("rb") as file:
        while chunk := file.read(1 << 20):
            digest.update(chunk)
    return None if digest.hexdigest() == entry.sha256 else entry.name
