"""An encoded sample goes in, what is kept of it while it waits comes out: its tokens, narrow, and no media bytes."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from packloom.types import EncodedSample, RawSample


@dataclass(frozen=True, kw_only=True, slots=True)
class ParkedSample:
    """A sample that waits for its batch. Media that were parts of the raw sample are read again when it leaves.

    So are those of aux datasets, by the stage that fetches them for every sample.
    """

    sample: EncodedSample  # integer tensors in the narrowest type that holds them
    parts: tuple[str | None, ...]  # per medium: the part to read again; None for one that is no part
    dtypes: dict[str, torch.dtype]  # of its token tensors

    @property
    def missing(self) -> tuple[str, ...]:
        """The parts to read."""
        return tuple(dict.fromkeys(part for part in self.parts if part is not None))


def park(sample: EncodedSample, raw: RawSample) -> ParkedSample:
    """Drop the media that can be read again: parts of ``raw`` as they are, and those of aux datasets.

    Others (from a data URI, say) stay with the sample.
    """
    names = {id(value): name for name, value in raw.items() if isinstance(value, bytes)}
    parts = tuple(None if item.media.aux else names.get(id(item.media.data)) for item in sample.media)
    media = tuple(
        item if part is None and item.media.aux is None else replace(item, media=replace(item.media, data=b""))
        for item, part in zip(sample.media, parts, strict=True)
    )
    return ParkedSample(
        sample=replace(
            sample,
            input_ids=_narrow(sample.input_ids),
            position_ids=_narrow(sample.position_ids),
            token_tensors={name: _narrow(tensor) for name, tensor in sample.token_tensors.items()},
            media=media,
        ),
        parts=parts,
        dtypes={name: tensor.dtype for name, tensor in sample.token_tensors.items()},
    )


def unpark(parked: ParkedSample, raw: RawSample) -> EncodedSample:
    """The sample as it was; ``raw`` has the missing parts."""
    sample = parked.sample
    media = tuple(
        item if part is None else replace(item, media=replace(item.media, data=raw[part]))
        for item, part in zip(sample.media, parked.parts, strict=True)
    )
    return replace(
        sample,
        input_ids=sample.input_ids.to(torch.int64),
        position_ids=sample.position_ids.to(torch.int64),
        token_tensors={name: tensor.to(parked.dtypes[name]) for name, tensor in sample.token_tensors.items()},
        media=media,
    )


def _narrow(tensor: Tensor) -> Tensor:
    """The same numbers in fewer bytes."""
    if tensor.dtype != torch.int64 or not tensor.numel():
        return tensor
    low, high = (int(limit) for limit in tensor.aminmax())
    for dtype in (torch.uint8, torch.int16, torch.int32):
        limits = torch.iinfo(dtype)
        if limits.min <= low and high <= limits.max:
            return tensor.to(dtype)
    return tensor
