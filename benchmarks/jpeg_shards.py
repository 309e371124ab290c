"""A number of samples goes in; a folder of shards with real JPEGs of 20 to 60 KB comes out, for the loaders to read."""

from __future__ import annotations

import io
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from PIL import Image
from skimage import data

from packloom.datasets import write_shards
from packloom.rng import derive

SIDE = 296  # pixels: the photographs are 300 high at least
MIN_BYTES, MAX_BYTES = 20_000, 60_000
SAMPLES_PER_SHARD = 500
_QUALITIES = (97, 95, 90, 80, 70)


def make_jpegs(count: int) -> list[bytes]:
    """Crops of scikit-image's photographs, of one size (so that all take as long to decode), each 20 to 60 KB."""
    photographs = [Image.fromarray(load()).convert("RGB") for load in (data.astronaut, data.chelsea, data.coffee)]
    rng = derive("benchmark", "jpegs")
    jpegs: list[bytes] = []
    while len(jpegs) < count:
        image = photographs[len(jpegs) % len(photographs)]
        left, top = rng.randint(0, image.width - SIDE), rng.randint(0, image.height - SIDE)
        jpegs += _encode(image.crop((left, top, left + SIDE, top + SIDE)))
    return jpegs


def _encode(image: Image.Image) -> list[bytes]:
    """The JPEG at the best quality that is small enough; none if there is no such."""
    for quality in _QUALITIES:
        file = io.BytesIO()
        image.save(file, "JPEG", quality=quality)
        if file.tell() <= MAX_BYTES:
            return [file.getvalue()] if file.tell() >= MIN_BYTES else []
    return []


def write_jpeg_shards(folder: Path, num_samples: int, num_jpegs: int = 256) -> int:
    """Write and index shards of samples ``{json, 0.jpg}``; the JPEGs repeat. Returns the bytes of all samples."""
    jpegs = make_jpegs(min(num_jpegs, num_samples))

    def samples() -> Iterator[dict[str, Any]]:
        for number in range(num_samples):
            row = {"messages": [{"role": "user", "content": f"What is shown in picture {number}?"}]}
            yield {"__key__": f"{number:08d}", "json": row, "0.jpg": jpegs[number % len(jpegs)]}

    write_shards(samples(), folder, samples_per_shard=SAMPLES_PER_SHARD)
    return sum(len(jpegs[number % len(jpegs)]) for number in range(num_samples))
