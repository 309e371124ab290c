"""A recipe goes in; worker processes run it, and batches come out with the counts of what was skipped."""

from __future__ import annotations

import os
import pickle
from collections import Counter, deque
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import torch
from torch.utils.data import DataLoader, IterableDataset, get_worker_info

from packloom.datasets.policy import Quarantine, SkipRecord
from packloom.datasets.shards import read_shard
from packloom.errors import PackloomError, ShardError, TooManyErrors
from packloom.loader.pipeline import Delivery, Pipeline, Recipe, no_good_samples
from packloom.rng import derive_seed
from packloom.types import Batch

#: ``Loader.skip_records`` keeps the latest; the quarantine file has them all.
MAX_SKIP_RECORDS = 1000


class WorkerTraceback(Exception):
    """The traceback of an error in a worker process, as the cause of the error that is raised here."""

    def __str__(self) -> str:
        return f"\n{self.args[0]}"


class Loader:
    """An iterable of batches; see ``build_loader``.

    Each ``iter(loader)`` goes on with the epoch after the last one that was begun, so two passes differ in order while
    a new loader with the same settings repeats them. Not safe to share between threads.
    """

    def __init__(self, recipe: Recipe) -> None:
        """Raises ConfigError if the quarantine file cannot be written."""
        self.config = recipe.config
        self.skipped: Counter[str] = Counter()  # code → samples skipped so far
        self.skip_records: deque[SkipRecord] = deque(maxlen=MAX_SKIP_RECORDS)
        self._recipe = recipe
        self._next_epoch = recipe.first_epoch
        self._counts: Counter[str] = Counter()
        path = recipe.config.loader.quarantine
        self._quarantine = Quarantine(path) if path is not None else None

    def __iter__(self) -> Iterator[Batch]:
        """Batches until the epochs are over.

        Raises TooManyErrors if too many samples fail in a row (counted per worker) or if none is good, ShardError if
        there is nothing to read, and under ``on_error="raise"`` the SampleError of the first bad sample.
        """
        num_batches, skipped_before = 0, self.skipped.copy()
        for delivery in self._deliveries():
            self._record(delivery)
            if delivery.failure is not None:
                raise delivery.failure from (WorkerTraceback(delivery.traceback) if self._has_workers else None)
            if delivery.batch is not None:
                num_batches += 1
                self._count(delivery.batch)
                yield delivery.batch
        if num_batches == 0 or self.config.source.epochs is None:
            self._explain_end(num_batches, self.skipped - skipped_before)

    def metrics(self) -> dict[str, float]:
        """Counts so far: batches, samples, input_tokens, loss_tokens, skipped; packed also fill (of pack_length)."""
        found: dict[str, float] = {
            name: self._counts[name] for name in ("batches", "samples", "input_tokens", "loss_tokens")
        }
        found["skipped"] = self.skipped.total()
        if self.config.loader.layout == "packed":
            room = self._counts["batches"] * (self.config.packing.pack_length or 0)
            found["fill"] = found["input_tokens"] / room if room else 0.0
        return found

    def _deliveries(self) -> DataLoader[Delivery]:
        settings = self.config.loader
        has_workers = self._has_workers
        # A generator of its own: DataLoader would else draw from, and so change, the user's global one.
        generator = torch.Generator().manual_seed(derive_seed(self.config.source.seed, "loader") >> 1)
        return DataLoader(
            _DeliveryStream(replace(self._recipe, first_epoch=self._next_epoch)),
            batch_size=None,
            num_workers=settings.num_workers,
            collate_fn=_unchanged,
            multiprocessing_context=settings.start_method if has_workers else None,
            prefetch_factor=settings.prefetch_factor if has_workers else None,
            worker_init_fn=_init_worker if has_workers else None,
            generator=generator,
        )

    @property
    def _has_workers(self) -> bool:
        return self.config.loader.num_workers > 0

    def _record(self, delivery: Delivery) -> None:
        self._next_epoch = max(self._next_epoch, delivery.epoch + 1)
        for record in delivery.skips:
            self.skipped[record.code] += 1
            self.skip_records.append(record)
            if self._quarantine is not None:
                self._quarantine.write(record)

    def _count(self, batch: Batch) -> None:
        self._counts["batches"] += 1
        self._counts["samples"] += batch["source_sample_num"]
        self._counts["input_tokens"] += batch["num_input_tokens"]
        self._counts["loss_tokens"] += batch["num_loss_tokens"]

    def _explain_end(self, num_batches: int, skipped: Counter[str]) -> None:
        """Raise for an end that is none: an endless stream that ended, or a pass in which all samples were bad.

        A finite pass without a batch is fine where this rank's share of the samples is empty.
        """
        if num_batches == 0 and skipped:
            raise TooManyErrors(no_good_samples(skipped.total(), skipped))
        if not any(True for shard in self._recipe.shards for _ in read_shard(shard)):
            raise ShardError(f"the {len(self._recipe.shards)} shard(s) hold no samples, e.g. {self._recipe.shards[0]}")
        if self.config.source.epochs is None:
            place = self.config.distribution
            raise ShardError(
                f"rank {place.dp_rank} of {place.dp_size} has no samples: there are fewer of them than ranks times"
                " workers. Use fewer of those, or shuffle=True, which gives each a share in some epoch"
            )


class _DeliveryStream(IterableDataset[Delivery]):
    """What runs in a worker process, or in this one without workers."""

    def __init__(self, recipe: Recipe) -> None:
        super().__init__()
        self.recipe = recipe

    def __iter__(self) -> Iterator[Delivery]:
        worker = get_worker_info()
        number, num_workers = (worker.id, worker.num_workers) if worker else (0, 1)
        place = self.recipe.config.distribution
        slot, num_slots = place.dp_rank * num_workers + number, place.dp_size * num_workers
        for delivery in Pipeline(self.recipe, slot=slot, num_slots=num_slots).deliveries():
            yield _portable(delivery) if worker else delivery


def _portable(delivery: Delivery) -> Delivery:
    """The delivery with a failure that pickles: a queue of processes drops what does not, and its reader would wait."""
    try:
        pickle.dumps(delivery.failure)
    except (pickle.PicklingError, TypeError, AttributeError):
        return replace(delivery, failure=PackloomError(str(delivery.failure)))
    return delivery


def _unchanged(delivery: Any) -> Any:
    return delivery


def _init_worker(number: int) -> None:
    """Workers are the parallelism; tokenizers that start threads of their own only warn about the fork, or hang."""
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
