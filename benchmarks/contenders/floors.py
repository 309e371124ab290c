"""Work goes in; loaders that only read, decode, resize and tokenise come out: what no loader can do without."""

from __future__ import annotations

import io
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch.utils.data import DataLoader, IterableDataset
from transformers import AutoTokenizer
from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import smart_resize

from contenders.workload import MAX_PIXELS, MIN_PIXELS, Sample, TarSamples, Work, messages_of


def pillow_floor(work: Work) -> Iterable[Any]:
    """Resizes with Pillow."""
    return _floor(work, with_torch=False)


def torch_floor(work: Work) -> Iterable[Any]:
    """Resizes with torch's filter for bytes."""
    return _floor(work, with_torch=True)


def _floor(work: Work, *, with_torch: bool) -> Iterable[Any]:
    return DataLoader(_Floor(work, with_torch=with_torch), batch_size=None, num_workers=work.num_workers)


class _Floor(IterableDataset[Any]):
    """Gives the counts of a sample and an empty tensor: nothing is cut, normalised, joined or handed over."""

    def __init__(self, work: Work, *, with_torch: bool) -> None:
        super().__init__()
        self._samples = TarSamples(work.shards)
        self._tokenizer = AutoTokenizer.from_pretrained(work.processor)
        self._with_torch = with_torch

    def __iter__(self) -> Iterator[dict[str, Any]]:
        return map(self._work, self._samples)

    def _work(self, sample: Sample) -> dict[str, Any]:
        height, width = self._resized(sample["0.jpg"])
        text = " ".join(_texts(sample))
        tokens = len(self._tokenizer(text)["input_ids"]) + height * width // 28**2
        counts = {"source_sample_num": 1, "num_input_tokens": tokens, "num_loss_tokens": 0}
        return {"input_ids": torch.empty(0), **counts}

    def _resized(self, jpeg: bytes) -> tuple[int, int]:
        image = Image.open(io.BytesIO(jpeg))
        image.load()  # these are RGB: to convert them would copy them
        height, width = smart_resize(image.height, image.width, factor=28, min_pixels=MIN_PIXELS, max_pixels=MAX_PIXELS)
        if self._with_torch:
            planes = _as_planes(np.asarray(image))
            torch.nn.functional.interpolate(planes, size=(height, width), mode="bicubic", antialias=True)
        else:
            np.asarray(image.resize((width, height), Image.Resampling.BICUBIC))
        return height, width


def _as_planes(pixels: np.ndarray) -> torch.Tensor:
    """[1, C, H, W] over the same memory, with the strides by which torch resizes fastest, as torchvision gives it."""
    height, width, channels = pixels.shape
    size = (1, channels, height, width)
    return torch.from_numpy(pixels).as_strided(size, (pixels.size, 1, width * channels, channels))


def _texts(sample: Sample) -> Iterator[str]:
    for message in messages_of(sample):
        parts = message["content"]
        yield parts if isinstance(parts, str) else parts[1]["text"]
