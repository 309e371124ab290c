"""Processors go in, what masks cost beside rendering and tokenising comes out: ``python benchmarks/masks.py``.

The baseline is what every training loop does: apply_chat_template, and the tokenizer's call. The cost of a mask is the
time in the steps that find and prove it, on a shape of conversation that is known, and the tokenizer's extra time for
character offsets. Rounds of everything alternate in one process; of each step the median counts. The goal is 15 %.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
from rich.console import Console
from rich.table import Table
from transformers import AutoTokenizer

from packloom import TaskEncoder
from packloom.task_encoders import base, prompt
from packloom.task_encoders.control_tokens import ControlTokens
from packloom.task_encoders.masking import AssistantMasks
from packloom.types import ChatSample, Message, TextPart

SHARED = Path(__file__).resolve().parent.parent.parent / "shared" / "processors"
FAMILIES = ("qwen2_5_vl", "gemma3", "glm46v")
GOAL = 0.15
#: Everything that encode_sample does for the mask alone: where it is looked up, and its name.
STEPS: tuple[tuple[Any, str], ...] = (
    (base, "settle_reasoning"),
    (ControlTokens, "refuse_in"),
    (AssistantMasks, "plan"),
    (prompt, "prove_origin"),
    (AssistantMasks, "mask"),
)


def chat(turns: int = 8) -> ChatSample:
    """Questions of 40 words and answers of 120, on an average."""
    words = "The quick brown fox jumps over the lazy dog and then explains, in some detail, why it did so. "
    messages = []
    for turn in range(turns):
        messages.append(Message(role="user", parts=(TextPart(text=f"Question {turn}: {words * 2}".strip()),)))
        messages.append(Message(role="assistant", parts=(TextPart(text=f"Answer {turn}: {words * 6}".strip()),)))
    return ChatSample(key="bench", messages=tuple(messages))


def measure(encoder: TaskEncoder, rounds: int) -> dict[str, float]:
    """Median seconds of each step for one chat."""
    sample, tokenizer, times = chat(), encoder.parts.tokenizer, defaultdict[str, list[float]](list)
    text = encoder.template.render(sample)
    steps: dict[str, Callable[[], object]] = {
        "render": lambda: encoder.template.render(sample),
        "tokenise": lambda: tokenizer(text, add_special_tokens=False)["input_ids"],
        "with offsets": lambda: _with_offsets(tokenizer, text),
        "encode_sample": lambda: encoder.encode_sample(sample),
    }
    for _ in range(rounds + 3):  # the first rounds warm up
        for name, step in steps.items():
            started = time.perf_counter()
            step()
            times[name].append(time.perf_counter() - started)
        with _timed_steps() as spent:
            encoder.encode_sample(sample)
        times["mask"].append(sum(spent))
    return {name: statistics.median(values[3:]) for name, values in times.items()}


def _with_offsets(tokenizer: Any, text: str) -> np.ndarray:
    return np.array(tokenizer(text, add_special_tokens=False, return_offsets_mapping=True)["offset_mapping"])


@contextmanager
def _timed_steps() -> Iterator[list[float]]:
    """The seconds of every call of a mask step inside the block."""
    spent: list[float] = []

    def timed(step: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any, **settings: Any) -> Any:
            started = time.perf_counter()
            try:
                return step(*arguments, **settings)
            finally:
                spent.append(time.perf_counter() - started)

        return call

    patches = [mock.patch.object(owner, name, timed(getattr(owner, name))) for owner, name in STEPS]
    for patch in patches:
        patch.start()
    try:
        yield spent
    finally:
        for patch in patches:
            patch.stop()


def text_encoder(folder: Path) -> TaskEncoder:
    """The encoder of a processor folder on its tokenizer alone."""
    config = TaskEncoder.from_pretrained(folder)
    return TaskEncoder.from_processor(AutoTokenizer.from_pretrained(folder), model_type=config.parts.model_type)


def folders(names: list[str], target: Path) -> dict[str, Path]:
    """Processor folders as given; without any, three families of ../shared."""
    if names:
        return {Path(name).name: Path(name) for name in names}
    sys.path.insert(0, str(SHARED))
    try:
        from materialize import materialize  # type: ignore[import-not-found]  # noqa: PLC0415
    except ImportError:
        return {}
    return {name: Path(materialize(name, target)) for name in FAMILIES}


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("processor", nargs="*", help="processor folders (default: three families of ../shared)")
    parser.add_argument("--rounds", type=int, default=60)
    options = parser.parse_args()
    console = Console(width=120)
    table = Table(title=f"an 8-turn chat, milliseconds, median of {options.rounds} rounds", title_justify="left")
    for column in ("processor", "tokens", "render", "tokenise", "offsets", "mask steps", "mask cost", "whole encode"):
        table.add_column(column, justify="left" if column == "processor" else "right")
    with tempfile.TemporaryDirectory() as target:
        found = folders(options.processor, Path(target))
        if not found:
            console.print(f"no processors: name folders, or put them under {SHARED}")
            return
        costs = []
        for name, folder in found.items():
            encoder = text_encoder(folder)
            spent = measure(encoder, options.rounds)
            baseline = spent["render"] + spent["tokenise"]
            offsets = max(0.0, spent["with offsets"] - spent["tokenise"])
            costs.append((spent["mask"] + offsets) / baseline)
            numbers = (spent["render"], spent["tokenise"], offsets, spent["mask"])
            tokens = encoder.encode_sample(chat()).num_tokens
            whole = spent["encode_sample"] / baseline
            table.add_row(
                name, str(tokens), *(f"{number * 1e3:.2f}" for number in numbers), f"{costs[-1]:.1%}", f"×{whole:.2f}"
            )
    console.print(table)
    console.print(f"mask cost, worst: {max(costs):.1%} of rendering and tokenising (goal: at most {GOAL:.0%})")


if __name__ == "__main__":
    main()
