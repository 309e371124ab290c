"""A function and its tasks enter, their results leave as they are done: in this process, or in spawned ones."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from itertools import islice
from multiprocessing import get_context, parent_process
from typing import Any, Protocol, TypeVar

from packloom.errors import WorkerError

_T = TypeVar("_T")
_A = TypeVar("_A")
#: Calls that wait in the queue of each worker.
_AHEAD = 2


class Runner(Protocol):
    """Runs calls of a function at the module level, of one argument, that may be repeated without harm."""

    def run(self, function: Callable[[_A], _T], arguments: Iterable[_A]) -> Iterator[_T]:
        """The results in the order in which they are done. What a call raises is raised."""

    def close(self) -> None:
        """Stop what still runs."""


class InProcess:
    """One call after the other, here."""

    def run(self, function: Callable[[_A], _T], arguments: Iterable[_A]) -> Iterator[_T]:
        return map(function, arguments)

    def close(self) -> None:
        pass


class LocalProcesses:
    """Spawned processes of this machine, started when they are first needed; they end as soon as this one does."""

    def __init__(self, num_workers: int) -> None:
        self._num_workers = num_workers
        self._pool: ProcessPoolExecutor | None = None

    def run(self, function: Callable[[_A], _T], arguments: Iterable[_A]) -> Iterator[_T]:
        if self._pool is None:
            # A forked child may wait for ever for a lock of a thread that it does not have.
            context = get_context("spawn")
            self._pool = ProcessPoolExecutor(self._num_workers, mp_context=context, initializer=_end_with_parent)
        rest = iter(arguments)
        open_calls: set[Future[Any]] = set()
        try:
            while True:
                room = _AHEAD * self._num_workers - len(open_calls)
                with _children_ignore_interrupts():  # submitting starts them
                    open_calls |= {self._pool.submit(function, argument) for argument in islice(rest, room)}
                if not open_calls:
                    return
                done, open_calls = wait(open_calls, return_when=FIRST_COMPLETED)
                for call in done:
                    yield call.result()
        except BrokenProcessPool as error:
            raise WorkerError(
                "a worker died (killed, out of memory, or the calling script lacks `if __name__ == '__main__'`): run it"
                " again, what is finished is kept"
            ) from error

    def close(self) -> None:
        if self._pool is not None:
            self._pool.shutdown(cancel_futures=True)
            self._pool = None


@contextmanager
def _children_ignore_interrupts() -> Iterator[None]:
    """A Ctrl-C reaches every process of a terminal; only this one is to answer it. Children inherit what is blocked."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _end_with_parent() -> None:
    """End this worker with the process that started it, however that ends: nobody waits for its results any more."""
    parent = parent_process()

    def watch() -> None:
        if parent is not None:
            parent.join()
            os._exit(1)

    threading.Thread(target=watch, daemon=True).start()
