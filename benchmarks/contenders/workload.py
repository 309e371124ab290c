"""What every contender is given: shards go in, raw samples, and the counts of a batch, come out."""

from __future__ import annotations

import io
import json
import tarfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.utils.data import IterableDataset, get_worker_info

MIN_PIXELS, MAX_PIXELS = 3136, 1003520
BATCH_SIZE = 8  # rows of a padded batch
PACK_LENGTH = 8192
BUFFER = 64  # samples among which pack mates are chosen

Sample = dict[str, bytes]


@dataclass(frozen=True, kw_only=True)
class Work:
    """The shards, the processor's folder, and how many workers there are."""

    shards: Path
    processor: Path
    num_workers: int


class TarSamples(IterableDataset[Any]):
    """Samples ``{json, 0.jpg}`` over and over, a worker's share each; the shards' tables are read beforehand."""

    def __init__(self, folder: Path) -> None:
        super().__init__()
        self._places: list[tuple[Path, dict[str, tuple[int, int]]]] = []
        for shard in sorted(folder.glob("*.tar")):
            with tarfile.open(shard) as tar:
                parts: dict[str, dict[str, tuple[int, int]]] = {}
                for member in tar:
                    key, _, part = member.name.partition(".")
                    parts.setdefault(key, {})[part] = (member.offset_data, member.size)
            self._places += [(shard, place) for place in parts.values()]

    def __iter__(self) -> Iterator[Sample]:
        worker = get_worker_info()
        first, step = (worker.id, worker.num_workers) if worker else (0, 1)
        files = {shard: shard.open("rb") for shard in {shard for shard, _ in self._places}}
        number = first
        while True:
            shard, parts = self._places[number % len(self._places)]
            yield {part: _read(files[shard], *place) for part, place in parts.items()}
            number += step


def _read(file: Any, offset: int, size: int) -> bytes:
    file.seek(offset)
    return bytes(file.read(size))


def messages_of(sample: Sample) -> list[dict[str, Any]]:
    """The conversation as chat templates want it."""
    messages: list[dict[str, Any]] = json.loads(sample["json"])["messages"]
    return messages


def image_of(sample: Sample) -> Any:
    """The photograph, decoded."""
    from PIL import Image  # noqa: PLC0415 - a worker's first use

    return Image.open(io.BytesIO(sample["0.jpg"])).convert("RGB")


def assistant_mask(ids: torch.Tensor, start: list[int], end: int) -> torch.Tensor:
    """[L] bool: what stands between ``start`` and ``end``, ``end`` included, found token by token."""
    values, mask = ids.numpy(), np.zeros(len(ids), dtype=bool)
    ends = np.flatnonzero(values == end)
    for place in np.flatnonzero(values[: len(values) - len(start)] == start[0]):
        if values[place : place + len(start)].tolist() == start:
            stop = ends[ends > place]
            mask[place + len(start) : (int(stop[0]) + 1 if len(stop) else len(values))] = True
    return torch.from_numpy(mask)


def counted(batch: Mapping[str, Any], *, samples: int, tokens: int) -> dict[str, Any]:
    """The batch with the counters that ``packloom.bench`` reads; it has ``input_ids`` and ``labels``."""
    loss_tokens = int((batch["labels"] != -100).sum())
    counters = {"source_sample_num": samples, "num_input_tokens": tokens, "num_loss_tokens": loss_tokens}
    return {**batch, **counters}
