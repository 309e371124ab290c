"""The samples that wait for a pack: indices and costs go in, ages and totals and plain-JSON state come out."""

from __future__ import annotations

import operator
from collections.abc import Mapping
from typing import Any, NamedTuple

from packloom.errors import ConfigError, PackingError
from packloom.packing.contract import Cost, PackLimits

_STATE_VERSION = 1


class Waiting(NamedTuple):
    """One sample that waits; ``arrival`` counts the pushes before its own."""

    ident: int
    tokens: int
    patches: int
    arrival: int


class WaitingRoom:
    """The samples that wait, in order of arrival; a cost that fits no pack is refused at the door."""

    def __init__(self, limits: PackLimits, settings: Mapping[str, int]) -> None:
        self.limits = limits
        self.samples: dict[int, Waiting] = {}
        self.pushed = 0
        self._settings = {"tokens": limits.tokens, "patches": limits.patches, **settings}
        self._tokens = 0  # of all that wait
        self._patches = 0

    def add(self, index: int, cost: Cost) -> Waiting:
        sample = Waiting(*map(operator.index, (index, cost.tokens, cost.patches, self.pushed)))
        if sample.tokens <= 0 or sample.patches < 0 or not self.limits.admit(sample.tokens, sample.patches):
            raise PackingError(
                f"index {index} costs {sample.tokens} tokens and {sample.patches} patches; a pack takes"
                f" 1..{self.limits.tokens} tokens and {self._patch_range()} patches: filter such samples before packing"
            )
        if sample.ident in self.samples:
            raise PackingError(f"index {index} was pushed again while it still waits: give each sample its own index")
        self.samples[sample.ident] = sample
        self.pushed += 1
        self._tokens += sample.tokens
        self._patches += sample.patches
        return sample

    def pop(self, index: int) -> Waiting:
        sample = self.samples.pop(index)
        self._tokens -= sample.tokens
        self._patches -= sample.patches
        return sample

    def age(self, sample: Waiting) -> int:
        """How many samples were pushed after it."""
        return self.pushed - 1 - sample.arrival

    def oldest_age(self) -> int:
        """The age of the sample that waits longest, -1 when none waits."""
        return self.age(next(iter(self.samples.values()))) if self.samples else -1

    def exceeds(self, num_packs: int) -> bool:
        """Whether more than ``num_packs`` packs' worth waits."""
        patches = self.limits.patches
        if self._tokens > num_packs * self.limits.tokens:
            return True
        return patches is not None and self._patches > num_packs * patches

    def state_dict(self) -> dict[str, Any]:
        return {
            "version": _STATE_VERSION,
            "settings": dict(self._settings),
            "pushed": self.pushed,
            "waiting": [list(sample) for sample in self.samples.values()],
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        for name, own in (("version", _STATE_VERSION), ("settings", self._settings)):
            if state.get(name) != own:
                raise ConfigError(
                    f"the packing state was saved with {name} {state.get(name)}, this packer has {own}:"
                    " resume with the saved settings, or start without this state"
                )
        self.samples = {index: Waiting(index, *rest) for index, *rest in state["waiting"]}
        self.pushed = state["pushed"]
        self._tokens = sum(sample.tokens for sample in self.samples.values())
        self._patches = sum(sample.patches for sample in self.samples.values())

    def _patch_range(self) -> str:
        return "any number of" if self.limits.patches is None else f"0..{self.limits.patches}"
