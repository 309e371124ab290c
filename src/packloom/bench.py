"""A loader goes in; how fast it is on this machine, in samples, tokens, bytes and memory, comes out."""

from __future__ import annotations

import multiprocessing
import resource
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from torch import Tensor

from packloom.errors import ConfigError
from packloom.loader import Loader
from packloom.types import Batch


@dataclass(frozen=True, kw_only=True)
class Speed:
    """What one run measured. Rates are over the time behind the first batch, in which workers start."""

    name: str
    samples_per_s: float
    tokens_per_s: float
    loss_tokens_per_s: float
    bytes_per_sample: float  # tensors of the batches, as they leave the workers
    fill: float  # input tokens over the room of the batches: pack_length, or the shape of padded ones
    peak_rss_mb: float  # this process and its workers; memory that they share counts for each
    first_batch_s: float
    num_samples: int
    num_skipped: int

    def as_dict(self) -> dict[str, Any]:
        """For ``--json``."""
        return {name: round(value, 4) if isinstance(value, float) else value for name, value in asdict(self).items()}


class Tally:
    """Adds up batches; ``room_of`` is how many tokens a batch could hold, by default those of its shape."""

    def __init__(self, room_of: Callable[[Batch], int] | None = None) -> None:
        self._room_of = room_of or _shape_room
        self.samples = self.tokens = self.loss_tokens = self.num_bytes = self.room = 0

    def add(self, batch: Batch) -> None:
        """Count one more batch."""
        self.samples += batch["source_sample_num"]
        self.tokens += batch["num_input_tokens"]
        self.loss_tokens += batch["num_loss_tokens"]
        self.num_bytes += tensor_bytes(batch)
        self.room += self._room_of(batch)


def _shape_room(batch: Batch) -> int:
    return batch["input_ids"].numel()


def measure(loader: Loader, *, seconds: float, name: str = "packloom") -> Speed:
    """Iterate for that long, or to the end of the pass; raises ConfigError if there is too little to measure."""
    length = loader.config.packing.pack_length if loader.config.loader.layout == "packed" else None
    room_of = None if length is None else lambda batch: length
    speed = measure_batches(iter(loader), seconds=seconds, name=name, room_of=room_of)
    return replace(speed, num_skipped=sum(loader.skipped.values()))


def measure_batches(
    batches: Iterator[Batch],
    *,
    seconds: float,
    name: str,
    started: float | None = None,
    room_of: Callable[[Batch], int] | None = None,
    cycle: int = 1,
) -> Speed:
    """As ``measure``, of whatever gives batches with packloom's counters.

    ``first_batch_s`` counts from ``started``, a reading of ``time.perf_counter``, by default from this call. A loader
    that gives batches in bursts of ``cycle`` samples is measured over whole ones.
    """
    started = time.perf_counter() if started is None else started
    first = _next_batch(batches)
    begun, tally = time.perf_counter(), Tally(room_of)
    for batch in batches:
        done = tally.samples // cycle
        tally.add(batch)
        if time.perf_counter() - begun >= seconds and tally.samples // cycle > done:
            break
    spent = time.perf_counter() - begun
    if not tally.samples:
        raise ConfigError("the data ended after the first batch: give more samples, or a shorter pack length")
    return Speed(
        name=name,
        samples_per_s=tally.samples / spent,
        tokens_per_s=tally.tokens / spent,
        loss_tokens_per_s=tally.loss_tokens / spent,
        bytes_per_sample=tally.num_bytes / tally.samples,
        fill=tally.tokens / tally.room if tally.room else 0.0,
        peak_rss_mb=peak_rss_mb(),
        first_batch_s=begun - started,
        num_samples=first["source_sample_num"] + tally.samples,
        num_skipped=0,
    )


def _next_batch(batches: Iterator[Batch]) -> Batch:
    try:
        return next(batches)
    except StopIteration as error:
        raise ConfigError("the loader gave no batch to measure") from error


def tensor_bytes(batch: Mapping[str, Any]) -> int:
    """Bytes of all tensors of a batch."""
    return sum(value.nbytes for value in batch.values() if isinstance(value, Tensor))


def peak_rss_mb() -> float:
    """The largest resident memory so far of this process, plus that of each worker that lives, in MiB."""
    unit = 1 if sys.platform == "darwin" else 1024  # ru_maxrss is in bytes there, in KiB elsewhere
    own = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit
    workers = (child.pid for child in multiprocessing.active_children())
    return (own + sum(_peak_of(pid) for pid in workers if pid is not None)) / 2**20


def _peak_of(pid: int) -> int:
    """VmHWM of a process, in bytes; 0 where there is no /proc, or it has just ended."""
    try:
        lines = Path(f"/proc/{pid}/status").read_text(encoding="ascii").splitlines()
    except OSError:
        return 0
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM:")), 0)
