"""A stream of deliveries goes in; worker processes run it, and the deliveries come out in the order of the workers."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from typing import Any, TypeVar

import torch
from torch.utils.data import DataLoader, Dataset, get_worker_info

from packloom.config import LoaderConfig
from packloom.errors import WorkerError
from packloom.loader.delivery import Delivery
from packloom.loader.parcels import Parcel, Receiver, pack
from packloom.rng import derive_seed
from packloom.rooms import open_pool

_D = TypeVar("_D", bound=Delivery)


class WorkerTraceback(Exception):
    """The traceback of an error in a worker process, as the cause of the error that is raised here."""

    def __str__(self) -> str:
        return f"\n{self.args[0]}"


def run_workers(
    stream: Dataset[_D], settings: LoaderConfig, *, seed: int, orders: Iterable[Any] | None = None
) -> Iterator[_D]:
    """The deliveries of worker 0, 1, ..., 0, 1, ... in turn, or of this process where there are no workers.

    With ``orders`` each worker gets one at a time and delivers ``stream[order]``; they are drawn in this process, as
    far ahead as batches are made ahead.

    Raises WorkerError when a worker is killed. Where torch notices it outside of here, in the code that uses the
    batches, it raises a plain RuntimeError.
    """
    has_workers = settings.num_workers > 0
    # A generator of its own: DataLoader would else draw from, and so change, the user's global one.
    generator = torch.Generator().manual_seed(derive_seed(seed, "loader") >> 1)
    deliveries: DataLoader[Any] = DataLoader(
        stream,
        batch_size=None,
        sampler=orders,
        num_workers=settings.num_workers,
        collate_fn=_handed_over,
        multiprocessing_context=settings.start_method if has_workers else None,
        prefetch_factor=settings.prefetch_factor if has_workers else None,
        worker_init_fn=_init_worker if has_workers else None,
        generator=generator,
    )
    try:
        yield from map(Receiver().unpack, deliveries) if has_workers else deliveries
    except (RuntimeError, EOFError, OSError) as error:
        if not (has_workers and _is_death(error)):
            raise
        reason = str(error).rstrip(".") or type(error).__name__
        raise WorkerError(
            f"a worker process of the loader died: {reason}. If memory ran out, use fewer workers. Nothing is lost: the"
            " loader's state is that of the last batch it gave, and a new iteration goes on there"
        ) from error


def _is_death(error: Exception) -> bool:
    """Whether it says that a worker died; torch has no class of its own for that.

    It tells so itself, or what the worker sent last cannot be received any more. An error that came up in a worker is
    raised again here under its own class, and named as such in its text.
    """
    if isinstance(error, RuntimeError):
        return "DataLoader worker (pid" in str(error)
    return "in DataLoader worker process" not in str(error)


def worker_place() -> tuple[int, int]:
    """(number of this worker, number of workers); (0, 1) outside of a worker."""
    worker = get_worker_info()
    return (worker.id, worker.num_workers) if worker else (0, 1)


def _handed_over(delivery: Any) -> Delivery | Parcel[Delivery]:
    """The delivery in a form in which it reaches the main process."""
    worker = get_worker_info()
    return pack(delivery, worker.id) if worker else delivery


def _init_worker(number: int) -> None:
    """Workers are the parallelism; tokenizers that start threads of their own only warn about the fork, or hang."""
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    open_pool()
