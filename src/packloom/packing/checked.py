"""Holds any packer to its contract: the same costs go in and the same groups come out, counted and proved."""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from typing import Any

from packloom.errors import PackingError, SampleError
from packloom.packing.contract import Cost, Packer, PackLimits, RefusedSamples
from packloom.packing.waiting import WaitingRoom


@dataclass(frozen=True, kw_only=True)
class PackStats:
    """What a packer has done so far; the fill of a pack is its tokens over the token limit."""

    token_limit: int
    num_packs: int = 0
    num_samples: int = 0
    num_tokens: int = 0
    least_tokens: int | None = None  # in one pack that ``push`` returned: those of ``finish`` hold what was left
    waiting_max: int = 0  # samples pushed while one sample waited, at most

    @property
    def fill_mean(self) -> float:
        """Mean fill of all packs; 0.0 before the first."""
        return self.num_tokens / (self.num_packs * self.token_limit) if self.num_packs else 0.0

    @property
    def fill_min(self) -> float:
        """Least fill of the packs that ``push`` returned; 0.0 before the first."""
        return (self.least_tokens or 0) / self.token_limit


class CheckedPacker:
    """Any packer, under a check: each index leaves once, no pack is over a limit, no sample waits too long.

    A breach is a PackingError that names the index; ``max_wait=None`` leaves ages unchecked.
    """

    def __init__(self, packer: Packer, limits: PackLimits, *, max_wait: int | None = None) -> None:
        self._packer = packer
        self._max_wait = max_wait
        self._room = WaitingRoom(limits, {})
        self._stats = PackStats(token_limit=limits.tokens)

    @property
    def waiting(self) -> tuple[int, ...]:
        """The indices that wait, in order of arrival."""
        return tuple(self._room.samples)

    @property
    def stats(self) -> PackStats:
        """The counts so far; a saved state carries them on."""
        return self._stats

    def push(self, index: int, cost: Cost) -> list[list[int]]:
        """Raises RefusedSamples, behind its checks, for samples that the packer cannot pack."""
        self._room.add(index, cost)
        refused: RefusedSamples | None = None
        try:
            packs = self._packer.push(index, cost)
        except RefusedSamples as error:
            packs, refused = error.packs, error
        except SampleError as error:
            packs, refused = [], RefusedSamples({index: error}, [])
        self._let_go(refused)
        for pack in packs:
            tokens = self._take_out(pack)
            least = self._stats.least_tokens
            self._stats = replace(self._stats, least_tokens=tokens if least is None else min(least, tokens))
        age = self._room.oldest_age()
        if self._max_wait is not None and age > self._max_wait:
            raise PackingError(
                f"index {self.waiting[0]} still waits after {age} further samples, max_wait is {self._max_wait}:"
                " the packer must return it in time"
            )
        if refused is not None:
            raise refused
        return packs

    def finish(self) -> list[list[int]]:
        """Raises RefusedSamples as ``push`` does."""
        refused: RefusedSamples | None = None
        try:
            packs = self._packer.finish()
        except RefusedSamples as error:
            packs, refused = error.packs, error
        self._let_go(refused)
        for pack in packs:
            self._take_out(pack)
        if self._room.samples:
            raise PackingError(
                f"the packer lost {len(self.waiting)} of the pushed indices, the first is {self.waiting[0]}:"
                " finish must return all that waits"
            )
        self._room.pushed = 0
        if refused is not None:
            raise refused
        return packs

    def state_dict(self) -> dict[str, Any]:
        return {**self._room.state_dict(), "stats": asdict(self._stats), "packer": self._packer.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._room.load_state_dict(state)
        self._packer.load_state_dict(state["packer"])
        self._stats = PackStats(**state["stats"])

    def _let_go(self, refused: RefusedSamples | None) -> None:
        for index in refused.errors if refused is not None else ():
            if index not in self._room.samples:
                raise PackingError(f"the packer refused index {index}, which was never pushed or has already left")
            self._room.pop(index)

    def _take_out(self, pack: list[int]) -> int:
        """Take a pack's samples out, prove that they waited and fit, count them; return their tokens."""
        tokens = patches = age = 0
        for index in pack:
            if index not in self._room.samples:
                raise PackingError(f"the packer returned index {index}, which was never pushed or has already left")
            sample = self._room.pop(index)
            tokens, patches, age = tokens + sample.tokens, patches + sample.patches, max(age, self._room.age(sample))
            if not self._room.limits.admit(tokens, patches):
                raise PackingError(
                    f"index {index} overfills its pack: {tokens} tokens and {patches} patches, over {self._room.limits}"
                )
        if not pack:
            raise PackingError("the packer returned an empty pack: a pack holds at least one index")
        self._stats = replace(
            self._stats,
            num_packs=self._stats.num_packs + 1,
            num_samples=self._stats.num_samples + len(pack),
            num_tokens=self._stats.num_tokens + tokens,
            waiting_max=max(age, self._stats.waiting_max),
        )
        return tokens
