"""Lengths and patches of samples go in, what a training step spends on each comes out."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from packloom.errors import ConfigError

Counts = NDArray[np.integer]
#: Costs are whole numbers, so that sums and orders are the same on every machine.
_UNITS = 1000


@dataclass(frozen=True, kw_only=True)
class StepCost:
    """The cost of a pack: ``linear`` per token, ``attention`` per squared length of each sample, ``vision`` per patch.

    Only ratios matter. For a decoder of hidden size h the multiplications per layer are about ``24·h²`` per token and,
    causal, ``2·h·len²`` per sample (Korthikanti et al., "Reducing activation recomputation in large transformer
    models", 2022, appendix A, halved for the causal mask), so ``attention = 1 / (12·h)``: the default is that of
    h = 4,096. ``vision`` is the share of a patch in the vision tower: parameters of the tower over those of the
    decoder; the default is that of 0.7 over 7 billion.
    """

    linear: float = 1.0
    attention: float = 2e-5
    vision: float = 0.1

    def __post_init__(self) -> None:
        terms = (self.linear, self.attention, self.vision)
        if min(terms) < 0 or max(terms) <= 0:
            raise ConfigError(f"the terms of a step's cost must not be negative, nor all zero, got {self}")

    def of(self, tokens: Counts, patches: Counts) -> NDArray[np.int64]:
        """[K] tokens and [K] patches of samples → [K] their costs, in thousandths of one token's where linear is 1.

        The cost of a pack is the sum over its samples.
        """
        length = tokens.astype(np.float64)
        cost = length * self.linear + length * length * self.attention + patches.astype(np.float64) * self.vision
        return np.rint(cost * _UNITS).astype(np.int64)
