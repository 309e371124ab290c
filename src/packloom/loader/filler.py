"""Filler rows that train nothing: they make up the rows, or the batches, that a rank lacks at the tail of a pass."""

from __future__ import annotations

from typing import cast

from packloom.collates.filler import make_filler
from packloom.errors import ReadError, SampleError, TooManyErrors
from packloom.loader.delivery import no_good_samples
from packloom.loader.feed import LaneFeed
from packloom.loader.stages import Stages
from packloom.types import Batch, EncodedSample, Row


class FillerMaker:
    """Makes filler rows after the pattern of the dataset's first good sample, so that they fit any encoder."""

    def __init__(self, feed: LaneFeed, stages: Stages) -> None:
        self._feed = feed
        self._stages = stages
        self._row: Row | None = None

    def row(self) -> Row:
        """One token that no loss counts, without media, under the key "". Raises TooManyErrors if no sample is good."""
        if self._row is None:
            self._row = Row(sample=make_filler(self._first_good()))
        return self._row

    def _first_good(self) -> EncodedSample:
        failures: dict[str, int] = {}
        for number in range(self._feed.num_samples):
            try:
                return self._stages.encode(self._feed.read(number), epoch=0)
            except (ReadError, SampleError) as error:
                failures[error.code] = failures.get(error.code, 0) + 1
        raise TooManyErrors(no_good_samples(self._feed.num_samples, failures))


def discount_fillers(batch: Batch, num_fillers: int) -> Batch:
    """The batch with its counters and keys less those of its last ``num_fillers`` rows, of one token each."""
    if not num_fillers:
        return batch
    counts = {
        "source_sample_num": batch["source_sample_num"] - num_fillers,
        "num_input_tokens": batch["num_input_tokens"] - num_fillers,
        "sample_keys": batch["sample_keys"][: len(batch["sample_keys"]) - num_fillers],
    }
    return cast(Batch, {**batch, **counts})
