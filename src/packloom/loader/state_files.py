"""The states of all ranks go into one folder per step, as a generation that is whole or is not used, and come back."""

from __future__ import annotations

import hashlib
import json
import logging
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from packloom.datasets.files import write_file
from packloom.errors import StateError
from packloom.loader.state import merge_states

logger = logging.getLogger(__name__)

MANIFEST_NAME = "manifest.json"
_VERSION = 1
_STEP_FOLDER = re.compile(r"step-(\d+)")


def save_state_dir(
    folder: str | os.PathLike[str],
    state: Mapping[str, Any],
    *,
    step: int,
    rank: int | None = None,
    world_size: int | None = None,
) -> Path:
    """Write this rank's state into ``folder/step-<step>/``; return that folder.

    Each data-parallel rank calls it once per step; no rank waits for another. The files appear whole or not at all, and
    the rank that finds those of all ranks writes the manifest, which makes the generation complete. What an earlier run
    left at the same step counts for nothing and is removed then. ``rank`` and ``world_size`` are those of the state;
    stated, they are compared with it. The folder must be one file system that all ranks see; local or shared, no url.

    Raises StateError if they differ, OSError if the file cannot be written.
    """
    if not isinstance(state, Mapping) or not {"dp_rank", "dp_size"} <= set(state):
        raise StateError(f"expected what Loader.state_dict returned, got {state!r:.80}")
    if isinstance(step, bool) or not isinstance(step, int):
        raise StateError(f"step must be a whole number, got {step!r}")
    for name, stated, own in (("rank", rank, state["dp_rank"]), ("world_size", world_size, state["dp_size"])):
        if stated is not None and stated != own:
            raise StateError(
                f"{name} {stated} was stated, but the state is that of dp_rank {state['dp_rank']} of"
                f" {state['dp_size']}: count data-parallel ranks"
            )
    if step < 0:
        raise StateError(f"step must not be negative, got {step}")
    target = Path(folder) / f"step-{step:010d}"
    # Files of another run, or of another number of ranks, have another run id: they never join this generation.
    run = _run_id(state)
    _withdraw_other_run(target, run)
    content = {"version": _VERSION, "step": step, "run": run, "state": state}
    write_file(str(target / _file_name(state["dp_rank"], state["dp_size"])), _encode(content))
    found, missing = _read_ranks(target, state["dp_size"], run)
    if not missing:
        manifest = {
            "version": _VERSION,
            "step": step,
            "run": run,
            "world_size": state["dp_size"],
            "files": {name: _file_facts(data) for name, data in found.items()},
        }
        write_file(str(target / MANIFEST_NAME), _encode(manifest))
        for path in target.glob("rank-*.json"):
            if path.name not in found:
                path.unlink(missing_ok=True)
    return target


def load_state_dir(folder: str | os.PathLike[str], step: int | None = None) -> dict[str, Any]:
    """The merged state of a step, which any number of ranks and workers can load; by default of the last complete one.

    Raises StateError for a folder without a complete generation, and for a ``step`` that is not there, is incomplete
    (it names the ranks that are missing) or is not what the manifest says.
    """
    root = Path(folder)
    steps = sorted(
        (
            int(match[1])
            for path in (root.iterdir() if root.is_dir() else ())
            if (match := _STEP_FOLDER.fullmatch(path.name))
        ),
        reverse=True,
    )
    if step is not None:
        if step not in steps:
            there = f"it has {', '.join(map(str, sorted(steps)))}" if steps else "it has none"
            raise StateError(f"{root} has no state of step {step}: {there}")
        return _load(root / f"step-{step:010d}")
    for candidate in steps:
        try:
            return _load(root / f"step-{candidate:010d}")
        except _Incomplete as error:
            logger.warning("%s; going back to the step before", error)
    raise StateError(f"{root} has no complete state" + (f" in any of its {len(steps)} steps" if steps else ""))


class _Incomplete(StateError):
    """A generation that a crash cut short."""


def _load(target: Path) -> dict[str, Any]:
    try:
        manifest = json.loads((target / MANIFEST_NAME).read_bytes())
        files, run = dict(manifest["files"]), manifest["run"]
        version, world_size = manifest["version"], int(manifest["world_size"])
    except FileNotFoundError as error:
        raise _Incomplete(f"{target} is incomplete: {_missing_without_manifest(target)}") from error
    except (ValueError, KeyError, TypeError) as error:
        raise StateError(f"{target / MANIFEST_NAME} is damaged: {type(error).__name__}: {error}") from error
    if version != _VERSION:
        raise StateError(f"{target / MANIFEST_NAME} has version {version}, this packloom reads {_VERSION}")
    found, missing = _read_ranks(target, world_size, run)
    if missing:
        ranks = ", ".join(map(str, missing))
        raise _Incomplete(f"{target} lacks rank(s) {ranks} of {world_size}, or has another run's state in their place")
    for name, data in found.items():
        if files.get(name) != _file_facts(data):
            raise StateError(f"{target / name} is not what the manifest says: it was changed or damaged")
    return merge_states([json.loads(data)["state"] for data in found.values()])


def _read_ranks(target: Path, world_size: int, run: str) -> tuple[dict[str, bytes], list[int]]:
    """The files of one run by name, and the ranks that have none."""
    found: dict[str, bytes] = {}
    missing = []
    for rank in range(world_size):
        name = _file_name(rank, world_size)
        try:  # opened, not listed: network file systems list what was there a while ago
            data = (target / name).read_bytes()
            is_of_run = json.loads(data)["run"] == run
        except (FileNotFoundError, ValueError, KeyError, TypeError):
            is_of_run = False
        if is_of_run:
            found[name] = data
        else:
            missing.append(rank)
    return found, missing


def _withdraw_other_run(target: Path, run: str) -> None:
    """Take back the manifest of another run at this step, whose files are about to be replaced one by one."""
    path = target / MANIFEST_NAME
    try:
        is_ours = json.loads(path.read_bytes())["run"] == run
    except FileNotFoundError:
        return
    except (ValueError, KeyError, TypeError):
        is_ours = False
    if not is_ours:
        path.unlink(missing_ok=True)


def _missing_without_manifest(target: Path) -> str:
    names = {path.name for path in target.glob("rank-*.json")}
    sizes = {int(name.removesuffix(".json").rpartition("-")[2]) for name in names}
    lacking = {size: [rank for rank in range(size) if _file_name(rank, size) not in names] for size in sorted(sizes)}
    told = [f"rank(s) {', '.join(map(str, ranks))} of {size} did not save" for size, ranks in lacking.items() if ranks]
    return "; ".join(told) or "it has no manifest, since its files are of different runs or the last save was cut short"


def _run_id(state: Mapping[str, Any]) -> str:
    """The same for all ranks that saved after the same batch of the same run, whatever their lanes."""
    shared = {name: value for name, value in state.items() if name not in ("dp_rank", "lanes", "digest")}
    return hashlib.sha256(_encode(shared)).hexdigest()


def _file_name(rank: int, world_size: int) -> str:
    return f"rank-{rank:05d}-of-{world_size:05d}.json"


def _file_facts(data: bytes) -> dict[str, Any]:
    return {"bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()}


def _encode(value: Any) -> bytes:
    return json.dumps(value, separators=(",", ":"), sort_keys=True).encode()
