"""Raw rows ``{"n": tokens, "token": id, "fault": where it fails}`` go in, batches of the real collate come out."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from typing import Any

import torch

from packloom.collates import collate
from packloom.errors import CookError, MediaError, SampleError
from packloom.types import Batch, EncodedMedia, EncodedSample, Media, RawSample, Row


class FakeEncoder:
    """A sample is ``n`` tokens that are all ``token``, and a medium where it has a part ``0.bin``.

    ``fault`` says where it fails. Groups of media fail as one. ``calls`` counts encoded samples and loaded rows.
    """

    def __init__(self, max_length: int | None = 8) -> None:
        self.max_length = max_length
        self.calls: Counter[str] = Counter()

    def encode_sample(self, raw: RawSample) -> EncodedSample:
        self.calls["encode"] += 1
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
        media = ()
        if "0.bin" in raw:
            item = Media(kind="image", name="0.bin", data=raw["0.bin"])
            media = (EncodedMedia(media=item, height=1, width=1, num_tokens=1, num_patches=1),)
        return EncodedSample(
            key=raw["__key__"],
            input_ids=torch.full((size,), row.get("token", 7)),
            loss_mask=torch.ones(size, dtype=torch.bool),
            position_ids=torch.arange(size)[None],
            token_tensors={"mm_token_type_ids": torch.zeros(size, dtype=torch.int64)},
            media=media,
            source=source,
        )

    def batch(self, samples: Sequence[EncodedSample]) -> list[Row]:
        rows = []
        for sample in samples:
            self.calls["load"] += 1
            if sample.source == "media":
                raise MediaError("cut off", key=sample.key, code="media.decode")
            pixels = [[float(value) for value in item.media.data] for item in sample.media]
            rows.append(Row(sample=sample, media_tensors={"pixel_values": torch.tensor(pixels)} if pixels else {}))
        return rows

    def collate(self, rows: Sequence[Row], **settings: Any) -> Batch:
        return collate(rows, pad_id=0, **settings)
