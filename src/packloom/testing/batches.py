"""An encoder and rows in, what is wrong with the labels of their batches out."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from packloom.task_encoders.base import TaskEncoder
from packloom.types import IGNORE_INDEX, Batch, Row


def batch_faults(encoder: TaskEncoder, rows: Sequence[Row]) -> list[str]:
    """Collate the rows packed with shifted labels and padded with unshifted ones, and compare every label.

    Raises CapabilityError if the encoder's family cannot be collated so.
    """
    packed = encoder.collate(rows, layout="packed", label_shift="next_token", pad_to_multiple_of=8)
    padded = encoder.collate(rows, layout="padded", label_shift="none")
    return [
        *_faults("packed", packed, _expected_packed(rows, packed["input_ids"].shape[1])),
        *_faults("padded", padded, _expected_padded(rows, padded["input_ids"].shape[1])),
    ]


def _expected_packed(rows: Sequence[Row], length: int) -> torch.Tensor:
    """[1, T]: the token after t where it belongs to the same sample and is trained on."""
    labels = [IGNORE_INDEX] * length
    start = 0
    for row in rows:
        ids, mask = row.sample.input_ids.tolist(), row.sample.loss_mask.tolist()
        for place in range(1, len(ids)):
            if mask[place]:
                labels[start + place - 1] = ids[place]
        start += len(ids)
    return torch.tensor([labels])


def _expected_padded(rows: Sequence[Row], length: int) -> torch.Tensor:
    """[B, S]: each trained token in its own place, nothing on padding."""
    labels = []
    for row in rows:
        pairs = zip(row.sample.input_ids.tolist(), row.sample.loss_mask.tolist(), strict=True)
        own = [token if trained else IGNORE_INDEX for token, trained in pairs]
        labels.append(own + [IGNORE_INDEX] * (length - len(own)))
    return torch.tensor(labels)


def _faults(layout: str, batch: Batch, expected: torch.Tensor) -> list[str]:
    labels, loss_mask = batch["labels"], batch["loss_mask"]
    if labels.shape != expected.shape:
        return [f"{layout}: labels have the shape {tuple(labels.shape)}, expected {tuple(expected.shape)}"]
    faults = []
    wrong = (labels != expected).nonzero().tolist()
    if wrong:
        row, place = wrong[0]
        faults.append(
            f"{layout}: {len(wrong)} labels differ, first at [{row}, {place}]:"
            f" {int(labels[row, place])}, expected {int(expected[row, place])}"
        )
    if not torch.equal(loss_mask.bool(), expected != IGNORE_INDEX):
        faults.append(f"{layout}: loss_mask is not where the labels are")
    return faults
