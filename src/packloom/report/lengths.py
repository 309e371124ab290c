"""An indexed dataset and an encoder go in; the exact length of every sample comes out, no image decoded."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

import numpy as np

from packloom.errors import ReadError, SampleError, ShardError
from packloom.report.samples import Chunk, chunks_of, load_encoder, open_samples, spread
from packloom.report.spec import DataSpec, EncoderSpec
from packloom.report.work import run_all


@dataclass(frozen=True, kw_only=True, eq=False)
class Lengths:
    """One row per sample that was looked at (N rows): what an encoder without a length limit makes of it.

    Of samples that are refused (``codes[i]`` is not "") all numbers are 0.
    """

    total: int  # samples of the dataset
    numbers: np.ndarray  # [N] int64, places in the dataset
    tokens: np.ndarray  # [N] int64, media tokens included
    media_tokens: np.ndarray  # [N] int64
    loss_tokens: np.ndarray  # [N] int64, tokens that are trained on
    patches: np.ndarray  # [N] int64, vision patches
    codes: tuple[str, ...]  # [N]

    @property
    def is_exact(self) -> bool:
        """Whether every sample of the dataset was looked at."""
        return len(self.numbers) == self.total

    @property
    def good(self) -> np.ndarray:
        """[N] bool."""
        return np.array([not code for code in self.codes], dtype=bool)

    @property
    def refused(self) -> Counter[str]:
        """How many samples are refused, by code."""
        return Counter(code for code in self.codes if code)


def measure_lengths(data: DataSpec, encoder: EncoderSpec, *, limit: int | None = None, num_workers: int = 0) -> Lengths:
    """Encode every sample, or ``limit`` of them evenly spread, up to the point where images would be decoded.

    Raises ShardError for a dataset without an index, ProcessorError for an encoder that cannot be loaded.
    """
    load_encoder(encoder)
    open_samples.cache_clear()  # files may have changed since the last call
    samples = open_samples(data, with_index=True)
    if samples.feed is None:
        raise ShardError(
            f"{data.path[0]} has no index, and lengths are kept by it: run `packloom index {data.path[0]}`"
        )
    numbers = spread(samples.feed.num_samples, limit)
    results = run_all(
        _measure_chunk,
        [((data, encoder), chunk) for chunk in chunks_of(numbers, num_workers)],
        num_workers=num_workers,
        label="stats",
        total=len(numbers),
        size=len,
    )
    rows = [row for result in results for row in result]
    columns = np.array([row[:4] for row in rows], dtype=np.int64).reshape(-1, 4).T
    return Lengths(
        total=samples.feed.num_samples,
        numbers=np.array(numbers, dtype=np.int64),
        tokens=columns[0],
        media_tokens=columns[1],
        loss_tokens=columns[2],
        patches=columns[3],
        codes=tuple(row[4] for row in rows),
    )


#: tokens, media tokens, trained tokens, patches, code
_Row = tuple[int, int, int, int, str]


def _measure_chunk(task: tuple[tuple[DataSpec, EncoderSpec], Chunk]) -> list[_Row]:
    (data, spec), chunk = task
    encoder = load_encoder(spec)
    rows: list[_Row] = []
    for item in open_samples(data, with_index=True).read(chunk):
        if isinstance(item.raw, ShardError):
            raise item.raw
        if isinstance(item.raw, ReadError):
            rows.append((0, 0, 0, 0, item.raw.code))
            continue
        try:
            sample = encoder.encode_sample(item.raw)
        except SampleError as error:
            rows.append((0, 0, 0, 0, error.code))
            continue
        media_tokens = sum(medium.num_tokens for medium in sample.media)
        rows.append((sample.num_tokens, media_tokens, int(sample.loss_mask.sum()), sample.num_patches, ""))
    return rows
