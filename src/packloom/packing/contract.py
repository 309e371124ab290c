"""What packers agree on: the cost of a sample, the limits of a pack, and the Packer protocol."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from packloom.errors import ConfigError, PackingError, SampleError


@dataclass(frozen=True)
class Cost:
    """What one sample takes of a pack: tokens (after alignment, see ``aligned``) and vision patches."""

    tokens: int
    patches: int = 0


@dataclass(frozen=True)
class PackLimits:
    """What one pack may hold; ``patches=None`` sets no limit on vision patches."""

    tokens: int
    patches: int | None = None

    def __post_init__(self) -> None:
        if self.tokens <= 0 or (self.patches is not None and self.patches <= 0):
            raise ConfigError(f"the limits of a pack must be positive, got {self}")

    def admit(self, tokens: int, patches: int) -> bool:
        """Whether one pack can hold that much."""
        return tokens <= self.tokens and (self.patches is None or patches <= self.patches)


class RefusedSamples(PackingError):
    """A packer cannot pack some samples: ``errors`` by index. They wait no longer, and the packer is fit to go on.

    ``packs`` is what ``push`` or ``finish`` would have returned.
    """

    def __init__(self, errors: Mapping[int, SampleError], packs: list[list[int]]) -> None:
        self.errors = dict(errors)
        self.packs = packs
        super().__init__(f"the packer refuses {len(self.errors)} sample(s): {next(iter(self.errors.values()), '')}")

    def __reduce__(self) -> tuple[object, ...]:
        return type(self), (self.errors, self.packs)


def packs_and_refused(
    group: Callable[[], list[list[int]]],
) -> tuple[list[list[int]], Mapping[int, SampleError]]:
    """What ``group``, a packer's ``push`` or ``finish``, returns, and the samples that the packer refuses."""
    try:
        return group(), {}
    except RefusedSamples as refused:
        return refused.packs, refused.errors


#: A user's own packer: costs and limits of a window in, groups of positions in that window out. A SampleError that it
#: raises is charged to the samples of the window for which it raises one when they are given alone.
PackFunction = Callable[[Sequence[Cost], PackLimits], list[list[int]]]


class Packer(Protocol):
    """Groups indices into packs; each pushed index leaves in exactly one group, at the latest in ``finish``."""

    def push(self, index: int, cost: Cost) -> list[list[int]]:
        """Take one sample; return the packs that are complete now (often none).

        A cost that fits no pack, or an index that still waits, is a PackingError.
        """

    def finish(self) -> list[list[int]]:
        """Return all that still waits; afterwards the packer starts afresh."""

    def state_dict(self) -> dict[str, Any]:
        """All that ``load_state_dict`` needs to continue identically, as plain JSON data."""

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from a saved state; settings that differ from the saved ones are a ConfigError."""


@dataclass(frozen=True, kw_only=True)
class PackerFactory:
    """A user's own streaming packer for ``build_loader(..., packer=PackerFactory(make=MyPacker))``.

    ``make`` is given the limits of a pack and returns a fresh Packer, one per lane; it must pickle if workers are
    spawned. All that a packer decides must follow from what was pushed, and ``state_dict`` must hold all of it, as
    plain JSON data and small: it is saved for each lane. A sample may wait for ``max_wait`` further ones at most.
    A SampleError that ``push`` raises is charged to the sample that was pushed; the packer must then be as it was.
    """

    make: Callable[[PackLimits], Packer]


def aligned(tokens: int, segment_multiple: int) -> int:
    """The length of a segment of ``tokens`` tokens once it is padded to a multiple of ``segment_multiple``."""
    return -(-tokens // segment_multiple) * segment_multiple
