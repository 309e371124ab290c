"""Draws and their costs go in; groups of draws that share a batch come out, with a compact state."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Protocol

from packloom.errors import PackingError
from packloom.packing import CheckedPacker, Cost

#: What both layers of a packer's state hold, and what a fresh packer has as well.
_SHARED = ("version", "settings", "pushed", "waiting")


class Grouper(Protocol):
    """Groups the draws of one lane."""

    @property
    def waiting(self) -> tuple[int, ...]:
        """The draws that wait for their group."""

    def push(self, draw: int, cost: Cost) -> list[list[int]]:
        """Take a draw; return the groups that are complete."""

    def finish(self) -> list[list[int]]:
        """Return what waits, and start afresh."""

    def state_dict(self) -> dict[str, Any]: ...

    def load_state_dict(self, state: Mapping[str, Any]) -> None: ...


class PackGrouper:
    """Groups that fill a pack. The state has four numbers per waiting sample: draw, tokens, patches, arrival.

    ``keep_whole`` for a user's packer, whose own state is kept beside these as it is.
    """

    def __init__(self, packer: CheckedPacker, *, keep_whole: bool = False) -> None:
        self._packer = packer
        self._keep_whole = keep_whole

    @property
    def waiting(self) -> tuple[int, ...]:
        return self._packer.waiting

    def push(self, draw: int, cost: Cost) -> list[list[int]]:
        return self._packer.push(draw, cost)

    def finish(self) -> list[list[int]]:
        return self._packer.finish()

    def state_dict(self) -> dict[str, Any]:
        full = self._packer.state_dict()
        inner = full["packer"]
        return {
            "pushed": full["pushed"],
            "waiting": [list(column) for column in zip(*full["waiting"], strict=True)],
            "packer": _plain_copy(inner)
            if self._keep_whole
            else {name: value for name, value in inner.items() if name not in _SHARED},
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        fresh = self._packer.state_dict()
        waiting = [list(row) for row in zip(*state["waiting"], strict=True)]
        shared = {"pushed": state["pushed"], "waiting": waiting}
        inner = _plain_copy(state["packer"]) if self._keep_whole else {**fresh["packer"], **state["packer"], **shared}
        self._packer.load_state_dict({**fresh, **shared, "packer": inner})


def _plain_copy(state: dict[str, Any]) -> Any:
    """A copy, since a state belongs to its batch whatever its packer does next. Raises PackingError."""
    try:
        copied = json.loads(json.dumps(state))
    except (TypeError, ValueError, RecursionError) as error:
        raise PackingError(f"state_dict of the packer is not plain JSON data: {error}") from error
    if copied != state:
        raise PackingError(
            f"state_dict of the packer changes on its way through JSON, from {state!r:.200} to {copied!r:.200}: use"
            " lists in place of tuples, and strings as keys"
        )
    return copied


class RowGrouper:
    """Groups of ``size`` draws in their order."""

    def __init__(self, size: int, *, keep_short: bool) -> None:
        self._size = size
        self._keep_short = keep_short
        self._waiting: list[int] = []

    @property
    def waiting(self) -> tuple[int, ...]:
        return tuple(self._waiting)

    def push(self, draw: int, cost: Cost) -> list[list[int]]:
        self._waiting.append(draw)
        if len(self._waiting) < self._size:
            return []
        group, self._waiting = self._waiting, []
        return [group]

    def finish(self) -> list[list[int]]:
        group, self._waiting = self._waiting, []
        return [group] if group and self._keep_short else []

    def state_dict(self) -> dict[str, Any]:
        return {"waiting": list(self._waiting)}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self._waiting = list(state["waiting"])
