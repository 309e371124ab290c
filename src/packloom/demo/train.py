"""A loader and a model go in; a short training run happens, and its losses and counts come out."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

import torch
from torch import nn

from packloom.errors import BatchError, ConfigError
from packloom.models import forward_step
from packloom.types import Batch

LEARNING_RATE = 2e-3
WARMUP_STEPS = 5


@dataclass(frozen=True, kw_only=True, slots=True)
class Step:
    """What one training step saw; ``loss`` is the mean over its supervised tokens, before the update."""

    loss: float
    num_samples: int
    num_tokens: int  # without padding
    num_loss_tokens: int
    seconds: float  # waiting for the batch, forward, backward and update


def train(loader: Iterable[Batch], model: nn.Module, *, num_steps: int, on_step: Callable[[Step], None]) -> list[Step]:
    """Train for ``num_steps`` batches with AdamW and call ``on_step`` after each; the model changes in place.

    Runs on one thread: a tiny model gains little from more, and on a busy machine they wait for each other.
    Raises ConfigError if the loader ends before that, BatchError if the loss is not a number.
    """
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        return _train(_Kept(iter(loader)), model, num_steps, on_step)
    finally:
        torch.set_num_threads(threads)


def _train(batches: _Kept, model: nn.Module, num_steps: int, on_step: Callable[[Step], None]) -> list[Step]:
    optimizer = torch.optim.AdamW(model.parameters(), lr=LEARNING_RATE, weight_decay=0.0)
    warmup = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: min(1.0, (step + 1) / WARMUP_STEPS))
    steps: list[Step] = []
    while len(steps) < num_steps:
        started = time.perf_counter()
        try:
            output, loss_func = forward_step(batches, model)
        except StopIteration:
            raise ConfigError(f"the data ended after {len(steps)} of {num_steps} steps: give more --samples") from None
        loss_sum, num_loss_tokens, _ = loss_func(output)
        loss = loss_sum / num_loss_tokens
        if not math.isfinite(loss.item()):
            raise BatchError(f"the loss became {loss.item()} at step {len(steps) + 1}")
        optimizer.zero_grad(set_to_none=True)
        torch.autograd.backward(loss)
        nn.utils.clip_grad_norm_(model.parameters(), max_norm=1.0)
        optimizer.step()
        warmup.step()
        steps.append(
            Step(
                loss=loss.item(),
                num_samples=batches.last["source_sample_num"],
                num_tokens=batches.last["num_input_tokens"],
                num_loss_tokens=int(num_loss_tokens),
                seconds=time.perf_counter() - started,
            )
        )
        on_step(steps[-1])
    return steps


class _Kept(Iterator[Batch]):
    """Hands batches on and keeps the last one, whose counters the step report reads."""

    def __init__(self, batches: Iterator[Batch]) -> None:
        self.batches = batches
        self.last: Batch = {}

    def __next__(self) -> Batch:
        self.last = next(self.batches)
        return self.last
