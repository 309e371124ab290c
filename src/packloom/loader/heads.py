"""A feed and numbers of samples go in; the samples come out with headers in place of images, where that is enough.

For a pass over the whole dataset that needs lengths only. Of shards, images whose size the index knows are not read: a
header of that size stands for each. Of Lance, JPEGs in blob columns are read as far as their headers. Everything else
(an Energon index, PNG and WebP in Lance, plain columns of bytes, files, blends) is read whole.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterator, Sequence

from packloom.datasets.dataset import ShardDataset
from packloom.errors import ReadError
from packloom.loader.feed import DatasetFeed, LaneFeed
from packloom.loader.lance_feed import LanceFeed
from packloom.loader.stages import Encoder
from packloom.task_encoders import TaskEncoder, cook
from packloom.types import RawSample

#: Samples of shards that are read together.
_TOGETHER = 16


def reads_headers_only(encoder: Encoder) -> bool:
    """Whether lengths follow from the headers of images: not where a user's encoder or cooker may look at the rest."""
    return isinstance(encoder, TaskEncoder) and encoder.cooker is cook


def read_heads(feed: LaneFeed, samples: Sequence[int], encoder: Encoder) -> Iterator[RawSample | ReadError]:
    """The samples in order, as ``feed.read`` gives them but for their images; a bad one is a ReadError.

    Only what is read is checked: damage to an image that was left out does not show. An encoder that may look at more
    than headers gets whole samples. Raises ShardError.
    """
    enough = reads_headers_only(encoder)
    if enough and isinstance(feed, DatasetFeed):
        for start in range(0, len(samples), _TOGETHER):
            yield from _shard_heads(feed, samples[start : start + _TOGETHER])
        return
    read = feed.read_head if enough and isinstance(feed, LanceFeed) else feed.read
    for sample in samples:
        try:
            yield read(sample)
        except ReadError as error:
            yield error


def png_header(width: int, height: int) -> bytes:
    """A PNG of this size that holds no pixels: whoever decodes it gets an error."""
    fields = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + b"".join(
        _chunk(*item) for item in ((b"IHDR", fields), (b"IDAT", b""), (b"IEND", b""))
    )


def _chunk(name: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))


def _shard_heads(feed: DatasetFeed, samples: Sequence[int]) -> Iterator[RawSample | ReadError]:
    sizes = [_known_sizes(feed.dataset, sample) for sample in samples]
    wanted = [
        (sample, tuple(name for name, size in found.items() if size is None))
        for sample, found in zip(samples, sizes, strict=True)
        if not isinstance(found, ReadError)
    ]
    raws = iter(feed.dataset.read_each(wanted))
    for found in sizes:
        raw = found if isinstance(found, ReadError) else next(raws)
        if isinstance(found, ReadError) or isinstance(raw, ReadError):
            yield raw
            continue
        notes = {name: value for name, value in raw.items() if name.startswith("__")}
        # in the order of the shard, as a whole read would give them
        parts = {name: raw[name] if size is None else png_header(*size) for name, size in found.items()}
        yield feed.with_aux({**notes, **parts})


def _known_sizes(dataset: ShardDataset, sample: int) -> dict[str, tuple[int, int] | None] | ReadError:
    shard, index = dataset.locate(sample)
    try:
        return {name: dataset.image_size(shard, index, name) for name in dataset.part_names(shard, index)}
    except ReadError as error:
        return error
