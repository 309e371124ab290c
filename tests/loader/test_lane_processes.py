"""Processes that are killed, and several ranks over gloo: nothing is lost, nothing comes twice."""

from __future__ import annotations

import json
import multiprocessing
import os
import re
import signal
from collections import Counter
from collections.abc import Callable
from datetime import timedelta
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh

from packloom.errors import WorkerError
from packloom.loader import build_loader, load_state_dir, save_state_dir

Fixture = Callable[..., Any]

SIZES = [1 + (place * 5) % 8 for place in range(60)]
SETTINGS = {"epochs": 1, "num_lanes": 8, "min_lane_samples": 5, "buffer_size": 4, "open_packs": 2}
FORK = multiprocessing.get_context("fork")


def in_processes(target: Callable[..., None], num_processes: int, *args: Any) -> list[int | None]:
    """Run ``target(rank, *args)`` in processes of their own; their exit codes."""
    processes = [FORK.Process(target=target, args=(rank, *args)) for rank in range(num_processes)]
    for process in processes:
        process.start()
    for process in processes:
        process.join(timeout=60)
        if process.is_alive():
            for other in processes:
                other.kill()
            pytest.fail("a process hangs")
    return [process.exitcode for process in processes]


class Telling:
    """An encoder whose batches say which process made them."""

    def __init__(self, encoder: Any) -> None:
        self.encoder = encoder
        self.max_length = encoder.max_length
        self.encode_sample = encoder.encode_sample
        self.batch = encoder.batch

    def collate(self, rows: Any, **settings: Any) -> Any:
        return {**self.encoder.collate(rows, **settings), "max_seqlen_q": os.getpid()}


def survive(rank: int, path: str, encoder: Any, file: Path) -> None:
    """Kill a worker behind the third batch, then iterate again."""
    loader = build_loader(path, Telling(encoder), num_workers=2, **SETTINGS)
    got, told = [], ""
    try:
        for batch in loader:
            got.append(batch["sample_keys"])
            if len(got) == 3:
                os.kill(batch["max_seqlen_q"], signal.SIGKILL)
    except RuntimeError as error:  # torch raises it in a signal handler: wherever this process is just then
        told = str(error)
    done = loader.state_dict()["batch"]
    rest = [batch["sample_keys"] for batch in loader]
    file.write_text(json.dumps([got, told, done, rest]))


def test_a_worker_is_killed(write: Fixture, encoder_class: Any, tmp_path: Path) -> None:
    path = write(SIZES)
    whole = [batch["sample_keys"] for batch in build_loader(path, encoder_class(), **SETTINGS)]
    assert in_processes(survive, 1, path, encoder_class(), tmp_path / "told.json") == [0]
    got, told, done, rest = json.loads((tmp_path / "told.json").read_text())
    assert re.match(r"a worker process of the loader died: |DataLoader worker \(pid .* is killed by signal", told)
    assert 3 <= len(got) <= done < len(whole)
    assert got == whole[: len(got)]
    assert rest == whole[done:]


def die(rank: int, path: str, encoder: Any, file: Path) -> None:
    """The worker dies while this process waits for its first batch."""

    class Dying(Telling):
        def collate(self, rows: Any, **settings: Any) -> Any:
            os.kill(os.getpid(), signal.SIGKILL)

    try:
        next(iter(build_loader(path, Dying(encoder), num_workers=1)))
    except WorkerError as error:
        file.write_text(str(error))


def test_a_worker_dies_while_it_is_waited_for(write: Fixture, encoder_class: Any, tmp_path: Path) -> None:
    assert in_processes(die, 1, write(SIZES), encoder_class(), tmp_path / "told") == [0]
    told = (tmp_path / "told").read_text()
    assert told.startswith("a worker process of the loader died: DataLoader worker (pid")
    assert told.endswith("a new iteration goes on there")


def train(rank: int, path: str, encoder: Any, folder: Path, last: int) -> None:
    """Save after each batch; die in the middle of the step after batch ``last``."""
    loader = build_loader(path, encoder, num_workers=1, **SETTINGS)
    for step, _ in enumerate(loader):
        if step == last:
            os.kill(os.getpid(), signal.SIGKILL)
        save_state_dir(folder, loader.state_dict(), step=step)


def test_the_main_process_is_killed(write: Fixture, encoder_class: Any, view: Fixture, tmp_path: Path) -> None:
    path = write(SIZES)
    whole = [view(batch) for batch in build_loader(path, encoder_class(), **SETTINGS)]
    assert in_processes(train, 1, path, encoder_class(), tmp_path / "state", 5) == [-signal.SIGKILL]
    loader = build_loader(path, encoder_class(), **SETTINGS)
    loader.load_state_dict(load_state_dir(tmp_path / "state"))
    assert [view(batch) for batch in loader] == whole[5:]


def join(rank: int, num_ranks: int, store: Path) -> None:
    """Every rank of a group that talks over gloo; a collective that not all join fails soon."""
    dist.init_process_group(
        "gloo", init_method=f"file://{store}", rank=rank, world_size=num_ranks, timeout=timedelta(seconds=20)
    )


def run_rank(rank: int, path: str, encoder: Any, folder: Path, name: str, settings: dict[str, Any]) -> None:
    """Write the keys of the batches that a rank of two gets, and its state after the first two of them."""
    join(rank, 2, folder / f"{name}.store")
    loader = build_loader(path, encoder, **settings)
    if (folder / "states").is_dir():
        loader.load_state_dict(load_state_dir(folder / "states"))
    keys = [batch["sample_keys"] for batch in islice(loader, 2)]
    save_state_dir(folder / f"{name}-states", loader.state_dict(), step=2, rank=rank, world_size=2)
    keys += [batch["sample_keys"] for batch in loader]
    (folder / f"{name}-{rank}.json").write_text(json.dumps(keys))
    dist.destroy_process_group()


def results(folder: Path, name: str) -> list[list[list[str]]]:
    return [json.loads((folder / f"{name}-{rank}.json").read_text()) for rank in range(2)]


@pytest.mark.parametrize("num_workers", [0, 2])
@pytest.mark.parametrize("tail", ["pad", "drop", "wrap"])
def test_two_ranks_over_gloo(write: Fixture, encoder_class: Any, tmp_path: Path, tail: Any, num_workers: int) -> None:
    path = write(SIZES, dict.fromkeys(range(16, 28), "cook"))
    settings = {**SETTINGS, "tail": tail, "shuffle": False, "num_workers": num_workers}
    assert in_processes(run_rank, 2, path, encoder_class(), tmp_path, "two", settings) == [0, 0]
    ranks = results(tmp_path, "two")
    assert len(ranks[0]) == len(ranks[1]) > 3
    counts = Counter(key for batches in ranks for keys in batches for key in keys)
    good = {f"{place:04d}" for place in range(60) if not 16 <= place < 28}
    assert set(counts) == good if tail != "drop" else set(counts) < good
    assert tail == "wrap" or max(counts.values()) == 1

    # Two ranks → one: the same batches in turn. One → two: again.
    expected = [keys for step in zip(ranks[0][2:], ranks[1][2:], strict=True) for keys in step if keys]
    [single] = [build_loader(path, encoder_class(), **settings)]
    single.load_state_dict(load_state_dir(tmp_path / "two-states"))
    first = [batch["sample_keys"] for batch in islice(single, 2)]
    save_state_dir(tmp_path / "states", single.state_dict(), step=3)
    assert first + [batch["sample_keys"] for batch in single] == expected
    assert in_processes(run_rank, 2, path, encoder_class(), tmp_path, "again", settings) == [0, 0]
    again = results(tmp_path, "again")
    assert [batches[3:] for batches in ranks] == again


def run_mesh(rank: int, path: str, encoder: Any, folder: Path) -> None:
    """Four ranks, of which each two are tensor-parallel peers."""
    join(rank, 4, folder / "mesh.store")
    mesh = init_device_mesh("cpu", (2, 1, 2), mesh_dim_names=("replicate", "shard", "tp"))
    loader = build_loader(path, encoder, device_mesh=mesh, dp_dims=("replicate", "shard"), **SETTINGS)
    found = loader.config.distribution
    keys = [batch["sample_keys"] for batch in loader]
    (folder / f"mesh-{rank}.json").write_text(json.dumps([found.dp_rank, found.dp_size, keys]))
    dist.destroy_process_group()


def test_a_device_mesh(write: Fixture, encoder_class: Any, tmp_path: Path) -> None:
    path = write(SIZES)
    assert in_processes(run_mesh, 4, path, encoder_class(), tmp_path) == [0] * 4
    ranks = [json.loads((tmp_path / f"mesh-{rank}.json").read_text()) for rank in range(4)]
    assert [rank[:2] for rank in ranks] == [[0, 2], [0, 2], [1, 2], [1, 2]]
    assert ranks[0] == ranks[1]
    assert ranks[2] == ranks[3]
    keys = sorted(key for rank in (0, 2) for batch in ranks[rank][2] for key in batch)
    assert keys == [f"{place:04d}" for place in range(60)]
