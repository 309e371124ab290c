"""Makes a packer of a user's plain function: windows of costs go in, the groups that it returns come out."""

from __future__ import annotations

from typing import Any

from packloom.errors import ConfigError, PackingError, SampleError
from packloom.packing.contract import Cost, PackFunction, PackLimits, RefusedSamples
from packloom.packing.next_fit import next_fit_packs
from packloom.packing.waiting import Waiting, WaitingRoom


class WindowPacker:
    """Runs ``function`` on windows of ``window`` new samples; what it leaves out joins the next window.

    A sample that would wait beyond ``max_wait`` is packed here, next-fit, when the function leaves it out again; so
    are those left over in ``finish``. Each pack holds its samples in order of arrival.
    """

    def __init__(self, function: PackFunction, limits: PackLimits, *, window: int = 256, max_wait: int = 2000) -> None:
        if not 1 <= window <= max_wait:
            raise ConfigError(f"a packing window must be in 1..max_wait={max_wait} samples, got {window}")
        self._function = function
        self._window = window
        self._max_wait = max_wait
        self._room = WaitingRoom(limits, {"window": window, "max_wait": max_wait})

    def push(self, index: int, cost: Cost) -> list[list[int]]:
        self._room.add(index, cost)
        if self._room.pushed % self._window:
            return []
        return self._pack(max_age=self._max_wait - self._window)

    def finish(self) -> list[list[int]]:
        try:
            return self._pack(max_age=-1) if self._room.samples else []
        finally:
            self._room.pushed = 0

    def state_dict(self) -> dict[str, Any]:
        return self._room.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._room.load_state_dict(state)

    def _pack(self, max_age: int) -> list[list[int]]:
        """Pack the window; of what the function leaves out, samples older than ``max_age`` are packed too."""
        window, limits = list(self._room.samples.values()), self._room.limits
        errors: dict[int, SampleError] = {}
        try:
            groups = self._function([_cost(sample) for sample in window], limits)
        except SampleError as error:
            errors = self._refused(window, error)
            window = [sample for sample in window if sample.ident not in errors]
            groups = self._function([_cost(sample) for sample in window], limits) if window else []
        left = dict(enumerate(window))
        packs = [[_take(left, position) for position in sorted(group)] for group in groups]
        overdue = [sample for sample in left.values() if self._room.age(sample) > max_age]
        packs += next_fit_packs(overdue, limits, self._max_wait)
        taken = [[self._room.pop(sample.ident).ident for sample in pack] for pack in packs]
        if errors:
            raise RefusedSamples(errors, taken)
        return taken

    def _refused(self, window: list[Waiting], error: SampleError) -> dict[int, SampleError]:
        """Take out the samples that the function refuses alone; raises ``error`` where it refuses none."""
        errors: dict[int, SampleError] = {}
        for sample in window:
            try:
                self._function([_cost(sample)], self._room.limits)
            except SampleError as own:
                errors[sample.ident] = own
        if not errors:
            raise error
        for ident in errors:
            self._room.pop(ident)
        return errors


def _cost(sample: Waiting) -> Cost:
    return Cost(sample.tokens, sample.patches)


def _take(left: dict[int, Waiting], position: int) -> Waiting:
    if position not in left:
        raise PackingError(
            f"the pack function returned position {position} twice, or it is none of the positions that it was given:"
            " each position may be in one group at most"
        )
    return left.pop(position)
