"""Rows of numbers go in; samples of that many tokens come out, so that what is measured is the loader alone."""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

import torch

from packloom.collates import collate
from packloom.rng import derive
from packloom.types import Batch, EncodedMedia, EncodedSample, Media, RawSample, Row


class NumberEncoder:
    """Rows ``{"n": tokens}`` become that many tokens; ``calls`` counts what is done."""

    def __init__(self, max_length: int) -> None:
        self.max_length = max_length
        self.calls: Counter[str] = Counter()

    def encode_sample(self, raw: RawSample) -> EncodedSample:
        """So many tokens, all of them trained on."""
        self.calls["encode"] += 1
        size = json.loads(raw["json"])["n"]
        return EncodedSample(
            key=raw["__key__"],
            input_ids=torch.full((size,), 7),
            loss_mask=torch.ones(size, dtype=torch.bool),
            position_ids=torch.arange(size)[None],
            media=tuple(_medium(raw[name]) for name in ("0.bin",) if name in raw),
        )

    def batch(self, samples: Sequence[EncodedSample]) -> list[Row]:
        """No media tensors."""
        self.calls["load"] += len(samples)
        return [Row(sample=sample) for sample in samples]

    def collate(self, rows: Sequence[Row], **settings: Any) -> Batch:
        """packloom's own."""
        return collate(rows, pad_id=0, **settings)


def _medium(data: bytes) -> EncodedMedia:
    """One that takes no tokens: the loader reads it (again, if the sample had to wait), and no tensors come of it."""
    media = Media(kind="image", name="0.bin", data=data)
    return EncodedMedia(media=media, height=1, width=1, num_tokens=0, num_patches=0)


def number_rows(
    count: int, *, median: int, most: int, least: int = 8, media_bytes: int = 0
) -> Iterator[dict[str, Any]]:
    """Samples of log-normal length between two limits, each with a medium of so many bytes."""
    rng = derive("benchmark", "resume")
    for number in range(count):
        size = min(most, max(least, round(rng.lognormvariate(math.log(median), 0.8))))
        media = {"0.bin": bytes(media_bytes)} if media_bytes else {}
        yield {"__key__": f"{number:09d}", "json": {"n": size}, **media}
