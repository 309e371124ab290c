"""What users' own tests need: an encoder goes in, a report on its assistant masks comes out."""

from packloom.testing.cases import MaskCase
from packloom.testing.check import check_masks
from packloom.testing.report import CaseResult, MaskReport
from packloom.testing.snapshot import (
    Change,
    Snapshot,
    compare_snapshots,
    facts_that_differ,
    read_snapshot,
    take_snapshot,
    write_snapshot,
)

__all__ = [
    "CaseResult",
    "Change",
    "MaskCase",
    "MaskReport",
    "Snapshot",
    "check_masks",
    "compare_snapshots",
    "facts_that_differ",
    "read_snapshot",
    "take_snapshot",
    "write_snapshot",
]
