"""A function and its tasks enter, they run on a Ray cluster, and their results leave as they are done."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from typing import Any, TypeVar

from packloom.errors import CapabilityError, WorkerError

_T = TypeVar("_T")
_A = TypeVar("_A")
#: How often a task starts anew after its worker or node was lost.
_MAX_RETRIES = 5


class RayProcesses:
    """Tasks of a Ray cluster. Every node needs packloom and the same paths, of source and target alike."""

    def __init__(self, *, address: str | None = None, num_workers: int | None = None) -> None:
        """``address`` None: the cluster that Ray finds, else a local one. ``num_workers`` None: as many as it has CPUs.

        Raises CapabilityError without Ray or where the cluster cannot be reached.
        """
        try:
            import ray  # noqa: PLC0415 - optional
        except ImportError as error:
            raise CapabilityError(f"--runner ray needs Ray: pip install 'packloom[ray]' ({error})") from error
        self._ray: Any = ray
        self._is_ours = not ray.is_initialized()
        if self._is_ours:
            try:
                self._ray.init(address=address, log_to_driver=False, include_dashboard=False, logging_level="warning")
            except (ConnectionError, ValueError, RuntimeError) as error:
                raise CapabilityError(f"the Ray cluster {address or ''} cannot be used: {error}") from error
        self._num_workers = num_workers or max(1, int(self._ray.cluster_resources().get("CPU", 1)))

    def run(self, function: Callable[[_A], _T], arguments: Iterable[_A]) -> Iterator[_T]:
        ray = self._ray
        remote = ray.remote(max_retries=_MAX_RETRIES, num_cpus=1)(function)
        rest = iter(arguments)
        open_calls: list[Any] = []
        while True:
            open_calls += [remote.remote(argument) for argument in islice(rest, self._num_workers - len(open_calls))]
            if not open_calls:
                return
            done, open_calls = ray.wait(open_calls)
            for call in done:
                try:
                    result = ray.get(call)
                except ray.exceptions.RayTaskError as error:
                    raise error.cause from error
                except ray.exceptions.RayError as error:
                    raise WorkerError(
                        f"a Ray worker was lost {_MAX_RETRIES + 1} times: {error}: run it again"
                    ) from error
                yield result

    def close(self) -> None:
        if self._is_ours:
            self._ray.shutdown()
