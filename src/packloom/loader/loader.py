"""Deliveries of workers go in; batches come out, with the counts of what was skipped and a state to resume from."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Collection, Iterator, Mapping
from time import perf_counter
from typing import Any, Protocol

from packloom.config import DataConfig
from packloom.datasets.policy import Quarantine, SkipRecord
from packloom.loader.delivery import Delivery
from packloom.loader.processes import WorkerTraceback
from packloom.types import Batch

#: ``Loader.skip_records`` keeps the latest; the quarantine file has them all.
MAX_SKIP_RECORDS = 1000
_TIMED = ("wait", "read", "encode", "media", "collate")


class Engine(Protocol):
    """What makes the batches: lanes over an indexed dataset, or a plain stream."""

    @property
    def config(self) -> DataConfig: ...

    def deliveries(self) -> Iterator[Delivery]: ...

    def state_dict(self) -> dict[str, Any]: ...

    def load_state_dict(self, state: Mapping[str, Any], *, allow_mismatch: Collection[str]) -> None: ...


class Loader:
    """An iterable of batches; see ``build_loader``. Not safe to share between threads.

    Over an indexed dataset, ``iter(loader)`` gives what is left of the current pass (``epochs`` epochs): after a loop
    that was left early, or a loaded state, it goes on at the very next batch. Once a pass has ended, it begins the
    next one, in an order of its own. A new loader with the same settings repeats them all. With ``epochs=None`` the
    pass never ends.

    Over un-indexed shards each ``iter(loader)`` begins the epoch after the last one that was begun, and there is no
    state.
    """

    def __init__(self, engine: Engine) -> None:
        """Raises ConfigError if the quarantine file cannot be written."""
        self.config = engine.config
        self.skipped: Counter[str] = Counter()  # code → samples skipped so far
        self.skip_records: deque[SkipRecord] = deque(maxlen=MAX_SKIP_RECORDS)
        #: (shard, code) → samples skipped so far
        self.skipped_by_source: Counter[tuple[str, str]] = Counter()
        #: (leaf, code) → samples of a blend skipped so far
        self.skipped_by_leaf: Counter[tuple[str, str]] = Counter()
        self._engine = engine
        self._counts: Counter[str] = Counter()
        self._seconds = dict.fromkeys(_TIMED, 0.0)  # of all workers
        self._waits: dict[int, int] = {}  # lane → age of its oldest sample
        path = self.config.loader.quarantine
        self._quarantine = Quarantine(path) if path is not None else None

    def __iter__(self) -> Iterator[Batch]:
        """Batches until the pass is over.

        Raises TooManyErrors if too many samples fail in a row (counted per worker) or if none is good, ShardError if
        there is nothing to read, WorkerError if a worker process is killed, StateError if the samples that a state
        names are no longer what they were, and under ``on_error="raise"`` the SampleError of the first bad sample.
        """
        deliveries = self._engine.deliveries()
        while (delivery := self._next(deliveries)) is not None:
            self._record(delivery)
            if delivery.failure is not None:
                has_workers = self.config.loader.num_workers > 0
                raise delivery.failure from (WorkerTraceback(delivery.traceback) if has_workers else None)
            if delivery.batch is not None:
                self._count(delivery.batch, delivery.num_filler_rows)
                yield delivery.batch
        self._waits.clear()

    def state_dict(self) -> dict[str, Any]:
        """Where this rank stands after the last batch that it gave, as plain JSON data.

        Save it with the model: on each rank with ``save_state_dir``, or wherever you like; ``merge_states`` makes of
        all ranks' states one that fits any number of ranks and workers. It holds no data: of each lane a cursor, and
        four numbers for each sample that waits to be packed. That is at most 1.5 KB, 400 bytes per lane and 40 bytes
        per waiting sample: about 100 KB over all ranks for 96 lanes with packs of 8,192 tokens.

        Raises StateError over un-indexed shards.
        """
        return self._engine.state_dict()

    def load_state_dict(self, state: Mapping[str, Any], *, allow_mismatch: Collection[str] = ()) -> None:
        """Go on after the batch that the state was taken after. Nothing is read before the next iteration.

        The sequence of batches goes on exactly, on any number of ranks and workers that the lanes allow. Raises
        StateError, which names both values, if the dataset, the encoder, the seed or a setting that shapes the
        sequence is another, and for the state of another rank. ``allow_mismatch`` names what may differ all the same
        ("dataset", "encoder", "version", or a setting; "digest" for a state that was edited); the sequence is then
        another one from here on.
        """
        allowed = (allow_mismatch,) if isinstance(allow_mismatch, str) else allow_mismatch
        self._engine.load_state_dict(state, allow_mismatch=allowed)
        self._waits.clear()

    def metrics(self) -> dict[str, float]:
        """Plain numbers for a logger, of all batches that this rank was given since the loader was built.

        Counts: ``batches``, ``samples``, ``input_tokens``, ``loss_tokens``, ``filler_rows`` (which are no samples),
        ``skipped`` and ``skipped/<code>`` (by shard: ``skipped_by_source``); of blends also ``samples/<leaf>``,
        ``input_tokens/<leaf>``, ``loss_tokens/<leaf>`` and ``skipped_of/<leaf>`` (by leaf and code:
        ``skipped_by_leaf``). ``fill``: input tokens over the room of all packs, or over
        all places [B, S] of padded batches.

        Seconds: ``seconds/wait``, for which the loop waited for its batches; ``seconds/read``, ``/encode``, ``/media``
        and ``/collate``, summed over workers, so that without workers they are within the wait, and with workers may
        exceed it. ``oldest_wait``: how many samples were drawn, in its lane, after the one that waits longest for a
        pack.
        """
        names = ("batches", "samples", "input_tokens", "loss_tokens", "filler_rows")
        found: dict[str, float] = {name: self._counts[name] for name in names}
        found["skipped"] = self.skipped.total()
        found["fill"] = self._counts["input_tokens"] / (self._counts["room"] or 1)
        found["oldest_wait"] = max(self._waits.values(), default=0)
        found.update({f"seconds/{stage}": self._seconds[stage] for stage in _TIMED})
        found.update({name: self._counts[name] for name in self._counts if "/" in name})
        found.update({f"skipped/{code}": number for code, number in self.skipped.items()})
        for (leaf, _), number in self.skipped_by_leaf.items():
            name = f"skipped_of/{leaf}"
            found[name] = found.get(name, 0) + number
        return found

    def _next(self, deliveries: Iterator[Delivery]) -> Delivery | None:
        start = perf_counter()
        delivery = next(deliveries, None)
        self._seconds["wait"] += perf_counter() - start
        return delivery

    def _record(self, delivery: Delivery) -> None:
        for stage, seconds in delivery.seconds.items():
            self._seconds[stage] += seconds
        self._waits.update(delivery.waits)
        for record in delivery.skips:
            self.skipped[record.code] += 1
            self.skipped_by_source[record.source, record.code] += 1
            if record.dataset:
                self.skipped_by_leaf[record.dataset, record.code] += 1
            self.skip_records.append(record)
            if self._quarantine is not None:
                self._quarantine.write(record)

    def _count(self, batch: Batch, num_filler_rows: int) -> None:
        self._counts["batches"] += 1
        self._counts["samples"] += batch["source_sample_num"]
        self._counts["input_tokens"] += batch["num_input_tokens"]
        self._counts["loss_tokens"] += batch["num_loss_tokens"]
        self._counts["filler_rows"] += num_filler_rows
        packed = self.config.loader.layout == "packed"
        room = self.config.packing.pack_length if packed else batch["input_ids"].numel()
        self._counts["room"] += room or 0
        for leaf, counts in batch.get("source_counts", {}).items():
            self._counts.update({f"{name}/{leaf}": number for name, number in counts.items()})
