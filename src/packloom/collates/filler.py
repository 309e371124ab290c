"""A sample goes in; a row of one token that trains nothing comes out, to make up for what a batch lacks."""

from __future__ import annotations

from dataclasses import replace

import torch

from packloom.types import EncodedSample


def make_filler(sample: EncodedSample) -> EncodedSample:
    """One text token of the sample, with the sample's position axes and token tensors.

    It is a token that is trained on there, since that is never one of a medium.
    """
    trained = torch.nonzero(sample.loss_mask)
    place = int(trained[0]) if len(trained) else 0
    return replace(
        sample,
        key="",
        source="",
        input_ids=sample.input_ids[place : place + 1].clone(),
        loss_mask=torch.zeros(1, dtype=torch.bool),
        position_ids=torch.zeros_like(sample.position_ids[:, :1]),
        token_tensors={name: tensor[place : place + 1].clone() for name, tensor in sample.token_tensors.items()},
        media=(),
    )
