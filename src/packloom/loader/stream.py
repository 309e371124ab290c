"""Un-indexed shards go in; the deliveries of their workers come out, without lanes and without a state."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Collection, Iterator, Mapping
from dataclasses import replace
from typing import Any

from torch.utils.data import IterableDataset

from packloom.config import DataConfig
from packloom.datasets.files import STDIN
from packloom.datasets.shards import read_shard
from packloom.errors import ConfigError, ShardError, StateError, TooManyErrors
from packloom.loader.delivery import StreamDelivery, no_good_samples
from packloom.loader.pipeline import Pipeline, Recipe
from packloom.loader.processes import run_workers, worker_place

logger = logging.getLogger(__name__)


class StreamEngine:
    """Each pass goes on with the epoch after the last one that was begun."""

    def __init__(self, recipe: Recipe) -> None:
        """Raises ConfigError for settings under which standard input would be read twice."""
        self._recipe = recipe
        self._next_epoch = recipe.first_epoch
        self._has_stdin = STDIN in recipe.shards
        if self._has_stdin:
            _check_stdin(recipe)
        logger.warning(
            "%s has no index: it is read as a stream, without exact resume, and ranks may get unequal numbers of"
            " batches; %s",
            recipe.shards[0],
            self._next_move,
        )

    @property
    def config(self) -> DataConfig:
        return self._recipe.config

    def deliveries(self) -> Iterator[StreamDelivery]:
        """Raises TooManyErrors or ShardError for a pass that ends without a batch, or an endless one that ends."""
        if self._has_stdin and self._next_epoch > self._recipe.first_epoch:
            raise ShardError("standard input was read already, and cannot be read twice: iterate once")
        num_batches, skipped = 0, Counter[str]()
        stream = _Stream(replace(self._recipe, first_epoch=self._next_epoch))
        for delivery in run_workers(stream, self.config.loader, seed=self.config.source.seed):
            self._next_epoch = max(self._next_epoch, delivery.epoch + 1)
            num_batches += delivery.batch is not None
            skipped.update(record.code for record in delivery.skips)
            yield delivery
        if num_batches == 0 or self.config.source.epochs is None:
            self._explain_end(num_batches, skipped)

    def state_dict(self) -> dict[str, Any]:
        raise StateError(
            f"there is no state to save: {self._recipe.shards[0]} has no index, and only indexed datasets resume"
            f" exactly. {self._next_move.capitalize()}"
        )

    def load_state_dict(self, state: Mapping[str, Any], *, allow_mismatch: Collection[str]) -> None:
        raise StateError(
            f"the state cannot be loaded: {self._recipe.shards[0]} has no index, and only indexed datasets resume"
            f" exactly. {self._next_move.capitalize()}"
        )

    @property
    def _next_move(self) -> str:
        if self._has_stdin:
            return "store what comes from standard input as shards, and run `packloom index` on their folder"
        return "run `packloom index` on its folder"

    def _explain_end(self, num_batches: int, skipped: Counter[str]) -> None:
        """Raise for an end that is none: an endless stream that ended, or a pass in which all samples were bad.

        A finite pass without a batch is fine where this rank's share of the samples is empty.
        """
        recipe = self._recipe
        if num_batches == 0 and skipped:
            raise TooManyErrors(no_good_samples(skipped.total(), skipped))
        if self._has_stdin or not any(True for shard in recipe.shards for _ in read_shard(shard)):
            raise ShardError(f"the {len(recipe.shards)} shard(s) hold no samples, e.g. {recipe.shards[0]}")
        if self.config.source.epochs is None:
            raise ShardError(
                f"rank {recipe.dp_rank} of {recipe.dp_size} has no samples: there are fewer of them than ranks times"
                " workers. Use fewer of those, or shuffle=True, which gives each a share in some epoch"
            )


def _check_stdin(recipe: Recipe) -> None:
    settings = {
        "num_workers": (recipe.config.loader.num_workers, 0),
        "dp_size": (recipe.dp_size, 1),
        "epochs": (recipe.config.source.epochs, 1),
    }
    wrong = [
        f"{name} is {value}, and must be {wanted}" for name, (value, wanted) in settings.items() if value != wanted
    ]
    if wrong:
        raise ConfigError(f"standard input can be read by one process and once: {'; '.join(wrong)}")


class _Stream(IterableDataset[StreamDelivery]):
    """What runs in a worker process, or in this one without workers."""

    def __init__(self, recipe: Recipe) -> None:
        super().__init__()
        recipe.library.prepare()  # before there are workers, who then share what it has read
        self.recipe = recipe

    def __iter__(self) -> Iterator[StreamDelivery]:
        number, num_workers = worker_place()
        recipe = self.recipe
        pipeline = Pipeline(recipe, slot=recipe.dp_rank * num_workers + number, num_slots=recipe.dp_size * num_workers)
        return pipeline.deliveries()
