"""The multiples that were asked for go in; the length of a batch comes out."""

from __future__ import annotations

import math

from packloom.alignment import FP8_MULTIPLES, segment_multiple
from packloom.errors import ConfigError

__all__ = ["FP8_MULTIPLES", "fixed_or_rounded", "joint_multiple", "segment_multiple"]


def joint_multiple(*multiples: int) -> int:
    """The least common multiple of what was asked for; one below 1 is a ConfigError."""
    if min(multiples) < 1:
        raise ConfigError(f"segment_multiple and pad_to_multiple_of must be at least 1, got {min(multiples)}")
    return math.lcm(*multiples)


def fixed_or_rounded(needed: int, length: int | None, multiple: int) -> int:
    """The length of a batch that needs ``needed`` tokens: ``length`` where it is fixed, else rounded up."""
    if length is None:
        return -(-needed // multiple) * multiple
    if length < 1 or length % multiple:
        raise ConfigError(f"length must be a multiple of {multiple} (the alignment that was asked for), got {length}")
    return length
