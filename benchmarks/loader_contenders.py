"""What is to be read goes in; loaders of packloom, webdataset and megatron-energon that read it come out, by name."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
import webdataset
from PIL import Image
from torch.utils.data import DataLoader, IterableDataset

from packloom import build_loader
from packloom.datasets import open_dataset
from packloom.datasets.epoch_order import EpochOrder
from packloom.types import EncodedMedia, EncodedSample, Media, RawSample, Row

try:
    import energon_peer
except ImportError:
    energon_peer = None


@dataclass(frozen=True, kw_only=True)
class Task:
    """What is read, and how."""

    folder: Path
    shuffle: bool
    window: int  # how far a sample may move by shuffling, in samples
    decodes: bool
    num_workers: int

    @property
    def decode(self) -> Callable[[bytes], Any] | None:
        return decode_jpeg if self.decodes else None

    def __str__(self) -> str:
        order = "shuffled" if self.shuffle else "in order"
        return f"{'JPEG decoded' if self.decodes else 'raw bytes'}, {order}, {self.num_workers} workers"


def decode_jpeg(data: bytes) -> np.ndarray:
    """[H, W, 3] uint8."""
    return np.asarray(Image.open(io.BytesIO(data)).convert("RGB"))


def decoded(sample: dict[str, Any]) -> dict[str, Any]:
    """A raw sample with its photograph as pixels."""
    return {**sample, "0.jpg": decode_jpeg(sample["0.jpg"])}


class InOrder(IterableDataset[dict[str, Any]]):
    """An indexed dataset in the order of one epoch."""

    def __init__(self, task: Task) -> None:
        super().__init__()
        self._dataset = open_dataset(task.folder)
        self._decodes = task.decodes
        self._order = EpochOrder(
            total=len(self._dataset),
            fingerprint=self._dataset.fingerprint,
            shuffle=task.shuffle,
            window=task.window,
        )

    def __iter__(self) -> Iterator[dict[str, Any]]:
        samples = (self._dataset[position] for position in self._order.iterate())
        return map(decoded, samples) if self._decodes else samples


class BytesEncoder:
    """Makes each sample a batch of its parts, with a token for the loader to count."""

    max_length = 1

    def __init__(self, decodes: bool) -> None:
        self._decodes = decodes

    @cached_property
    def _token(self) -> dict[str, torch.Tensor]:
        return {
            "input_ids": torch.zeros(1, dtype=torch.int64),
            "loss_mask": torch.ones(1, dtype=torch.bool),
            "position_ids": torch.zeros(1, 1, dtype=torch.int64),
        }

    def encode_sample(self, raw: RawSample) -> EncodedSample:
        """Keep the parts as media."""
        media = tuple(Media(kind="image", name=name, data=raw[name]) for name in ("json", "0.jpg"))
        items = tuple(EncodedMedia(media=item, height=1, width=1, num_tokens=0, num_patches=0) for item in media)
        return EncodedSample(key=raw["__key__"], media=items, **self._token)

    def batch(self, samples: Sequence[EncodedSample]) -> list[Row]:
        """Nothing to load: the photograph is decoded in ``collate``, which may return what it likes."""
        return [Row(sample=sample) for sample in samples]

    def collate(self, rows: Sequence[Row], **settings: Any) -> Any:
        """The dict of parts."""
        sample = rows[0].sample
        parts: dict[str, Any] = {item.media.name: item.media.data for item in sample.media}
        counts = {"source_sample_num": 1, "num_input_tokens": 1, "num_loss_tokens": 1, "sample_keys": [sample.key]}
        counts["input_ids"] = sample.input_ids[None]
        return {**(decoded(parts) if self._decodes else parts), "__key__": sample.key, **counts}


def packloom_dataset(task: Task) -> Iterable[Any]:
    return in_worker(InOrder(task), task)


def packloom_loader(task: Task) -> Iterable[Any]:
    return build_loader(
        task.folder,
        BytesEncoder(task.decodes),
        layout="padded",
        shuffle=task.shuffle,
        shuffle_window=task.window,
        num_workers=task.num_workers,
    )


def plain_webdataset(task: Task) -> Iterable[Any]:
    shards = sorted(map(str, task.folder.glob("*.tar")))
    stream = webdataset.WebDataset(shards, shardshuffle=100 if task.shuffle else False, seed=0)
    if task.shuffle:
        stream = stream.shuffle(task.window, initial=task.window, seed=0)
    return in_worker(stream.map(decoded) if task.decodes else stream, task)


def megatron_energon(task: Task) -> Iterable[Any]:
    if task.shuffle:
        return energon_peer.training_loader(task.folder, task.decode, num_workers=task.num_workers, buffer=task.window)
    return energon_peer.sequential_loader(task.folder, task.decode, num_workers=task.num_workers)


def in_worker(stream: IterableDataset[Any], task: Task) -> Iterable[Any]:
    """The stream itself, or what a worker process reads of it."""
    if not task.num_workers:
        return stream
    return DataLoader(stream, batch_size=None, num_workers=task.num_workers, collate_fn=unchanged)


def unchanged(sample: dict[str, Any]) -> dict[str, Any]:
    """Keep torch from turning arrays into tensors."""
    return sample


def contenders() -> dict[str, Callable[[Task], Iterable[Any]]]:
    """Name → what makes the loader of a task."""
    found: dict[str, Callable[[Task], Iterable[Any]]] = {
        "packloom dataset": packloom_dataset,
        "packloom loader": packloom_loader,
        "webdataset": plain_webdataset,
    }
    return {**found, "energon": megatron_energon} if energon_peer else found
