"""Pure packers: costs go in one by one, groups of indices that share a pack come out.

A packer never sees a sample, only its index and its cost. What waits is bounded by count, by packs' worth of tokens
and by age, so that a checkpoint stays small and no sample is forgotten.
"""

from packloom.packing.best_fit import BestFitPacker
from packloom.packing.checked import CheckedPacker, PackStats
from packloom.packing.contract import (
    Cost,
    Packer,
    PackerFactory,
    PackFunction,
    PackLimits,
    RefusedSamples,
    aligned,
    packs_and_refused,
)
from packloom.packing.window import WindowPacker

__all__ = [
    "BestFitPacker",
    "CheckedPacker",
    "Cost",
    "PackFunction",
    "PackLimits",
    "PackStats",
    "Packer",
    "PackerFactory",
    "RefusedSamples",
    "WindowPacker",
    "aligned",
    "packs_and_refused",
]
