"""Tokens and the mask of those trained on go in; the labels and the loss mask that a loss reads come out."""

from __future__ import annotations

from typing import get_args

import torch
from torch import Tensor

from packloom.errors import ConfigError
from packloom.types import IGNORE_INDEX, LabelShift


def make_labels(input_ids: Tensor, loss_mask: Tensor, label_shift: LabelShift) -> tuple[Tensor, Tensor]:
    """Labels [L] int64 and their loss mask [L] float32 of one sample: ``input_ids`` [L], ``loss_mask`` [L] bool.

    ``"next_token"`` puts at t the token after t where that token is trained on, and nothing at the last position.
    ``"none"`` leaves each token in its own place, for a loss that shifts by itself. The shift happens here, on one
    sample, so that no target crosses into the next one. Any other ``label_shift`` is a ConfigError.
    """
    if label_shift not in get_args(LabelShift):
        raise ConfigError(f"label_shift must be one of {get_args(LabelShift)}, got {label_shift!r}")
    targets = input_ids.masked_fill(~loss_mask, IGNORE_INDEX)
    if label_shift == "none":
        return targets, loss_mask.to(torch.float32)
    labels = torch.full_like(targets, IGNORE_INDEX)
    labels[:-1] = targets[1:]
    shifted = torch.zeros(loss_mask.shape, dtype=torch.float32)
    shifted[:-1] = loss_mask[1:]
    return labels, shifted
