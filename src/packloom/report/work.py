"""A function and its tasks go in; the results come out in order, made by several processes, with a progress bar."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar

from tqdm import tqdm

from packloom.datasets.convert.runners import InProcess, LocalProcesses, Runner

_A = TypeVar("_A")
_T = TypeVar("_T")


def run_all(
    function: Callable[[_A], _T],
    tasks: Sequence[_A],
    *,
    num_workers: int,
    label: str,
    total: int | None,
    size: Callable[[_T], int],
) -> list[_T]:
    """The results in the order of the tasks; ``function`` is at module level. ``size`` of each moves the bar.

    The bar is on stderr, and only where that is a terminal. 0 or 1 workers: this process. What a call raises is raised.
    """
    results: dict[int, _T] = {}
    bar: tqdm[Any]
    numbered = [(function, number, task) for number, task in enumerate(tasks)]
    with (
        _runner(min(num_workers, len(tasks))) as runner,
        tqdm(total=total, unit="sample", desc=label, disable=None, file=sys.stderr, leave=False) as bar,
    ):
        for number, result in runner.run(_call, numbered):
            results[number] = result
            bar.update(size(result))
    return [results[number] for number in range(len(tasks))]


def _call(task: tuple[Callable[[_A], _T], int, _A]) -> tuple[int, _T]:
    function, number, argument = task
    return number, function(argument)


@contextmanager
def _runner(num_workers: int) -> Iterator[Runner]:
    runner: Runner = LocalProcesses(num_workers) if num_workers > 1 else InProcess()
    try:
        yield runner
    finally:
        runner.close()
