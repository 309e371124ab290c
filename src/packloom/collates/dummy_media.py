"""Rows without media and a dummy medium go in; rows that every rank can run its vision tower on come out.

A sharded tower (FSDP, ZeRO-3) communicates in its forward: a rank whose batch has no image would leave the others
waiting, and one that averages gradients over ranks would dilute them. So such a batch gets one small medium: a segment
of its own, without labels, counted nowhere, that no real token attends to. A batch with media gets none, so no grid
row ever stands beside a real one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Literal, get_args

import torch
from torch import Tensor

from packloom.errors import BatchError, ConfigError
from packloom.types import Row

DummyMedia = Literal["per_batch", "off"]


def check_dummy_media(value: str) -> None:
    """Raises ConfigError for anything but a DummyMedia."""
    if value not in get_args(DummyMedia):
        raise ConfigError(f"dummy_media must be one of {', '.join(get_args(DummyMedia))}, got {value!r}")


def make_dummy(row: Row, media_ids: Tensor) -> Row:
    """The row's medium alone: its run of tokens of ``media_ids``, which no loss counts, with positions from 0.

    ``row`` holds one small medium. Raises BatchError if it holds none.
    """
    sample = row.sample
    places = torch.isin(sample.input_ids, media_ids).nonzero()[:, 0]
    if not len(places) or not any(tensor.numel() for tensor in row.media_tensors.values()):
        raise BatchError(f"sample {sample.key!r} has no medium, so no dummy can be made of it")
    span = slice(int(places[0]), int(places[-1]) + 1)
    positions = sample.position_ids[:, span]
    dummy = replace(
        sample,
        key="",
        input_ids=sample.input_ids[span].clone(),
        loss_mask=torch.zeros(span.stop - span.start, dtype=torch.bool),
        position_ids=positions - positions[:, :1],
        token_tensors={name: tensor[span].clone() for name, tensor in sample.token_tensors.items()},
    )
    return Row(sample=dummy, media_tensors=row.media_tensors)


def dummies_for(rows: Sequence[Row], dummy: Row | None) -> list[Row]:
    """``[dummy]`` where one is given and no row has a medium, else none."""
    if dummy is None or any(tensor.numel() for row in rows for tensor in row.media_tensors.values()):
        return []
    return [dummy]
