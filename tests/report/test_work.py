"""Tasks in several processes: results in the order of the tasks, errors raised, the bar moved by what each holds."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import pytest

import packloom.report.work
from packloom.report.work import run_all


class LastFirst:
    """Stands for processes: the results come in another order than the tasks."""

    def __init__(self, num_workers: int) -> None:
        self.num_workers = num_workers

    def run(self, function: Callable[[Any], Any], arguments: Iterable[Any]) -> Iterator[Any]:
        assert self.num_workers == 2
        return map(function, reversed(list(arguments)))

    def close(self) -> None:
        pass


@pytest.mark.parametrize("num_workers", [0, 2])
def test_results_come_in_the_order_of_the_tasks(num_workers: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(packloom.report.work, "LocalProcesses", LastFirst)
    sizes: list[int] = []

    def size(result: int) -> int:
        sizes.append(result)
        return 1

    found = run_all(math.factorial, [9, 1, 5, 3, 7], num_workers=num_workers, label="test", total=5, size=size)
    assert found == [362880, 1, 120, 6, 5040]
    assert sorted(sizes) == [1, 6, 120, 5040, 362880]
    with pytest.raises(ValueError, match="factorial"):
        run_all(math.factorial, [3, -1], num_workers=num_workers, label="test", total=2, size=size)


def test_no_tasks() -> None:
    assert run_all(math.factorial, [], num_workers=4, label="test", total=0, size=int) == []
