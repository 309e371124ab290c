"""An encoded sample goes in; where the tokens of each of its media stand, and in which rows and columns, comes out."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from packloom.task_encoders.base import TaskEncoder
from packloom.types import EncodedMedia, EncodedSample, MediaKind

#: Columns by which rounding to whole patches may change the proportions of an image.
_SLACK = 1.5


@dataclass(frozen=True, kw_only=True, slots=True)
class Grid:
    """Where the tokens of one medium stand: ``runs`` of (start, count), step by step and row by row.

    A video has ``steps``, in each of which the same number of frames have an equal share of its tokens; 0 where they
    are not told apart. 0 rows where there is no grid.
    """

    rows: int = 0
    columns: int = 0
    runs: tuple[tuple[int, int], ...] = ()
    steps: int = 0


def media_grids(encoder: TaskEncoder, sample: EncodedSample) -> list[Grid]:
    """One per medium, in order. None has runs where the tokens of its kind are not those that the media own."""
    run_ids = encoder.chat.run_ids
    kinds: dict[int, list[int]] = {}  # id of a token → the media that own tokens of it; videos may own an image's
    for place, item in enumerate(sample.media):
        kinds.setdefault(run_ids.get(item.media.kind, -1), []).append(place)
    grids = [Grid()] * len(sample.media)
    for token_id, places in kinds.items():
        own = np.flatnonzero(sample.input_ids.numpy() == token_id)
        if own.size != sum(sample.media[place].num_tokens for place in places):
            continue
        first = 0
        for place in places:
            item = sample.media[place]
            runs = tuple(_runs(own[first : first + item.num_tokens].tolist()))
            first += item.num_tokens
            grids[place] = _grid(encoder, item, runs, _count(sample, "image"))
    return grids


def _count(sample: EncodedSample, kind: MediaKind) -> int:
    return sum(item.media.kind == kind for item in sample.media)


def _grid(encoder: TaskEncoder, item: EncodedMedia, runs: tuple[tuple[int, int], ...], num_images: int) -> Grid:
    if item.frames is not None:
        steps, rows, columns = _video_shape(encoder, item)
        return Grid(rows=rows, columns=columns, runs=runs, steps=steps)
    if item.media.kind != "image":
        return Grid(runs=runs)
    rows, columns = _image_shape(encoder, item.height, item.width, num_images, item.num_tokens)
    return Grid(rows=rows, columns=columns, runs=runs)


def _image_shape(encoder: TaskEncoder, height: int, width: int, num_images: int, num_tokens: int) -> tuple[int, int]:
    """(rows, columns) that a processor lays one image out in; (0, 0) for tiles and anything else."""
    if encoder.image_rule is None:
        return 0, 0
    layout = encoder.image_rule.measure(height, width, num_images)
    if layout.token_grid is not None and layout.token_grid[0] == 1:
        return layout.token_grid[1:]
    rows, columns = len(layout.runs), layout.runs[0]
    is_even = rows > 1 and set(layout.runs) == {columns} and rows * columns == num_tokens and layout.grid_thw is None
    # a run for each row, not for each tile: then rows and columns have the proportions of the image
    if is_even and abs(rows * width / height - columns) <= _SLACK:
        return rows, columns
    return 0, 0


def _video_shape(encoder: TaskEncoder, item: EncodedMedia) -> tuple[int, int, int]:
    """(steps, rows, columns) of a video; 0 for what its layout does not tell."""
    if encoder.video_rule is None or item.frames is None:
        return 0, 0, 0
    layout = encoder.video_rule.measure(item.media.name, item.height, item.width, item.frames)
    if layout.token_grid is not None:
        times, rows, columns = layout.token_grid
        steps = len(layout.runs) if layout.per_run else times
        return (steps, rows, columns) if steps * rows * columns == item.num_tokens else (0, 0, 0)
    is_even = len(layout.runs) == len(item.frames.indices) and len(set(layout.runs)) == 1
    return len(layout.runs) if is_even else 0, 0, 0


def _runs(places: Sequence[int]) -> Iterator[tuple[int, int]]:
    start = 0
    for end in range(1, len(places) + 1):
        if end == len(places) or places[end] != places[end - 1] + 1:
            yield places[start], end - start
            start = end
