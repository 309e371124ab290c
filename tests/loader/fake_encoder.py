"""Raw rows ``{"n": tokens, "fault": where it fails}`` go in, batches of the real collate come out; no processor."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import torch

from packloom.collates import collate
from packloom.errors import CookError, MediaError, SampleError
from packloom.types import Batch, EncodedSample, RawSample, Row


class FakeEncoder:
    """A sample is ``n`` tokens that are all 7; ``fault`` says where it fails. Groups of media fail as one."""

    def __init__(self, max_length: int | None = 8) -> None:
        self.max_length = max_length

    def encode_sample(self, raw: RawSample) -> EncodedSample:
        row = json.loads(raw["json"])
        if row.get("fault") == "cook":
            raise CookError("no image", code="cook.image_count")
        if row.get("fault") == "bug":
            raise KeyError("a bug")
        if row.get("fault") == "local":

            class LocalError(SampleError):
                """No other process can load it."""

            raise LocalError("of a local class", key=raw["__key__"])
        size, source = row["n"], "media" if row.get("fault") == "media" else raw["__url__"]
        return EncodedSample(
            key=raw["__key__"],
            input_ids=torch.full((size,), 7),
            loss_mask=torch.ones(size, dtype=torch.bool),
            position_ids=torch.arange(size)[None],
            source=source,
        )

    def batch(self, samples: Sequence[EncodedSample]) -> list[Row]:
        for sample in samples:
            if sample.source == "media":
                raise MediaError("cut off", key=sample.key, code="media.decode")
        return [Row(sample=sample) for sample in samples]

    def collate(self, rows: Sequence[Row], **settings: Any) -> Batch:
        return collate(rows, pad_id=0, **settings)
