"""The rows of a batch go in; how much of it came from each leaf of the blend comes out."""

from __future__ import annotations

from collections.abc import Sequence

from packloom.types import LabelShift, Row


def count_sources(rows: Sequence[Row], label_shift: LabelShift) -> dict[str, dict[str, int]]:
    """Leaf → samples, input_tokens, loss_tokens, counted as the batch's own counters; {} outside of blends."""
    found: dict[str, dict[str, int]] = {}
    for sample in (row.sample for row in rows):
        if sample.dataset:
            counts = found.setdefault(sample.dataset, {"samples": 0, "input_tokens": 0, "loss_tokens": 0})
            counts["samples"] += 1
            counts["input_tokens"] += sample.num_tokens
            # A label is the next token where labels are shifted, so the first token of a sample is never one.
            counts["loss_tokens"] += int(sample.loss_mask[int(label_shift == "next_token") :].sum())
    return found
