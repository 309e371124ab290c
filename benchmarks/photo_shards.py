"""A number of samples goes in; shards of chats about real photographs, as cameras and screens size them, come out.

The photographs are scikit-image's, cropped to the shape of each size, resized and encoded as JPEG once, when the shards
are made. The texts are English prose: the help pages of the Python language. With Qwen2.5-VL and pixel bounds of
3136..1003520 a sample has about 1,400 tokens, of which the image is 600 to 1,280.
"""

from __future__ import annotations

import io
import itertools
from collections.abc import Iterator
from pathlib import Path
from pydoc_data.topics import topics
from random import Random
from typing import Any

from PIL import Image, ImageOps
from skimage import data

from packloom.datasets import write_shards
from packloom.rng import derive

#: (width, height), landscape and upright.
SIZES = ((1024, 768), (768, 1024), (1280, 960), (800, 600), (1024, 683), (1600, 1200))
QUALITY = 90
SAMPLES_PER_SHARD = 200
TURNS = 3
_WORDS = (14, 36), (40, 80)  # fewest and most of a question, of an answer


def make_photographs(sizes: tuple[tuple[int, int], ...] = SIZES) -> list[bytes]:
    """Each photograph in each size, as JPEG."""
    loads = (data.astronaut, data.chelsea, data.coffee, data.rocket, data.retina, data.hubble_deep_field)
    originals = [Image.fromarray(load()).convert("RGB") for load in loads]
    # neighbours differ in photograph and in size
    order = (
        (originals[(row + column) % len(originals)], size)
        for row in range(len(originals))
        for column, size in enumerate(sizes)
    )
    return [_as_jpeg(ImageOps.fit(image, size, Image.Resampling.LANCZOS)) for image, size in order]


def _as_jpeg(image: Image.Image) -> bytes:
    file = io.BytesIO()
    image.save(file, "JPEG", quality=QUALITY)
    return file.getvalue()


def make_rows(count: int) -> Iterator[dict[str, Any]]:
    """Chats of three turns, the photograph in the first question."""
    words = " ".join(topics[name] for name in sorted(topics)).split()
    photographs = make_photographs()
    random = derive("benchmark", "photographs")
    for number, photograph in zip(range(count), itertools.cycle(photographs)):
        messages = [message for _ in range(TURNS) for message in _turn(words, random)]
        question = messages[0]["content"]
        messages[0]["content"] = [{"type": "image", "image": "0.jpg"}, {"type": "text", "text": question}]
        yield {"__key__": f"{number:08d}", "json": {"messages": messages}, "0.jpg": photograph}


def _turn(words: list[str], random: Random) -> list[dict[str, Any]]:
    return [
        {"role": role, "content": _prose(words, random, *limits)}
        for role, limits in zip(("user", "assistant"), _WORDS, strict=True)
    ]


def _prose(words: list[str], random: Random, fewest: int, most: int) -> str:
    count = random.randint(fewest, most)
    start = random.randrange(len(words) - count)
    return " ".join(words[start : start + count])


def write_photo_shards(folder: Path, num_samples: int) -> None:
    """Write and index them; the photographs repeat, the texts do not."""
    write_shards(make_rows(num_samples), folder, samples_per_shard=SAMPLES_PER_SHARD)
