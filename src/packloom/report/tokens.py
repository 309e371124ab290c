"""An encoded sample goes in; its tokens as the page shows them, and its positions as runs, come out."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Literal

import numpy as np

from packloom.testing.spans import Reader
from packloom.types import EncodedSample

Kind = Literal["text", "control", "terminator", "media"]
#: What decoding gives for a character of which some bytes are cut off.
_HALF = "\ufffd"


@dataclass(frozen=True, kw_only=True, slots=True)
class Token:
    """One token; the tokens of one character that needs several, or a run of one media token, are one of these."""

    start: int  # place of the first in the sample
    ids: tuple[int, ...]  # one for a run of media tokens
    count: int
    text: str
    kind: Kind
    trained: bool


def tokens_of(reader: Reader, sample: EncodedSample) -> Iterator[Token]:
    """Every token of the sample, in order."""
    ids, mask = sample.input_ids.tolist(), sample.loss_mask.tolist()
    keys = [(mask[place], index if index in reader.control_ids else None) for place, index in enumerate(ids)]
    place = 0
    for (trained, control), group in groupby(keys):
        count = len(list(group))
        if control is None:
            context = ids[max(0, place - 1) : place]
            yield from _words(reader, context, ids[place : place + count], place, trained)
        elif control in reader.media_ids:
            text = reader.decode([control])
            yield Token(start=place, ids=(control,), count=count, text=text, kind="media", trained=trained)
        else:
            kind: Kind = "terminator" if control in reader.terminators and trained else "control"
            for at in range(place, place + count):
                text = reader.decode([control])
                yield Token(start=at, ids=(control,), count=1, text=text, kind=kind, trained=trained)
        place += count


def position_runs(positions: Sequence[int]) -> list[tuple[int, int, int]]:
    """[L] positions of one axis as runs of (first, step, count)."""
    values = np.asarray(positions, dtype=np.int64)
    runs: list[tuple[int, int, int]] = []
    steps = np.diff(values)
    changes = np.flatnonzero(np.diff(steps)) + 1  # the places of steps that differ from the one before
    place = 0
    while place < len(values):
        if place == len(values) - 1:
            runs.append((int(values[place]), 0, 1))
            break
        at = int(np.searchsorted(changes, place, side="right"))
        end = int(changes[at]) if at < len(changes) else len(steps)
        runs.append((int(values[place]), int(steps[place]), end - place + 1))
        place = end + 1
    return runs


def _words(reader: Reader, context: list[int], ids: list[int], place: int, trained: bool) -> Iterator[Token]:
    """Ordinary tokens; some tokenizers decode a blank only behind another token, so there is always one before."""
    start, shown = 0, len(reader.decode(context))
    for end in range(1, len(ids) + 1):
        text = reader.decode([*context, *ids[start:end]])
        if text.endswith(_HALF) and end < len(ids):
            continue
        own = tuple(ids[start:end])
        yield Token(start=place + start, ids=own, count=len(own), text=text[shown:], kind="text", trained=trained)
        context, start = list(own), end
        shown = len(reader.decode(context))
