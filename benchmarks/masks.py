"""Processors go in, what masks cost beside rendering and tokenising comes out: ``python benchmarks/masks.py``.

The baseline is what every training loop does to an 8-turn chat: render the template, call the tokenizer. The cost of
the mask is all that the text side of an encoder does beyond those two: checks for control tokens, the comparison with
the skeleton, character offsets, the proofs on the tokens, the mask. Both alternate in one process; medians count.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path

from rich.console import Console
from rich.table import Table
from transformers import AutoTokenizer

from packloom import TaskEncoder
from packloom.task_encoders.processors import load_parts
from packloom.types import ChatSample, Message, TextPart

SHARED = Path(__file__).resolve().parent.parent.parent / "shared" / "processors"
FAMILIES = ("qwen2_5_vl", "gemma3", "glm46v")
GOAL = 0.15
WORDS = "The quick brown fox jumps over the lazy dog and then explains, in some detail, why it did so. "


def chat(turns: int = 8) -> ChatSample:
    """Questions of 40 words and answers of 120."""
    messages = []
    for turn in range(turns):
        messages.append(Message(role="user", parts=(TextPart(text=f"Question {turn}: {WORDS * 2}".strip()),)))
        messages.append(Message(role="assistant", parts=(TextPart(text=f"Answer {turn}: {WORDS * 6}".strip()),)))
    return ChatSample(key="bench", messages=tuple(messages))


def measure(encoder: TaskEncoder, rounds: int) -> dict[str, float]:
    """Median seconds of each step for one chat whose shape is known."""
    sample, tokenizer, times = chat(), encoder.parts.tokenizer, defaultdict[str, list[float]](list)
    text = encoder.template.render(sample)
    steps: dict[str, Callable[[], object]] = {
        "render": lambda: encoder.template.render(sample),
        "tokenise": lambda: tokenizer(text, add_special_tokens=False, verbose=False)["input_ids"],
        "text side": lambda: encoder.chat.tokenise(encoder.chat.prepare(sample), []),
        "encode_sample": lambda: encoder.encode_sample(sample),
    }
    warm_up = 3
    for _ in range(rounds + warm_up):
        for name, step in steps.items():
            started = time.perf_counter()
            step()
            times[name].append(time.perf_counter() - started)
    return {name: statistics.median(values[warm_up:]) for name, values in times.items()}


def text_encoder(folder: Path) -> TaskEncoder:
    """The encoder of a processor folder on its tokenizer alone."""
    tokenizer = AutoTokenizer.from_pretrained(folder)
    return TaskEncoder.from_processor(tokenizer, model_type=load_parts(folder).model_type)


def folders(names: list[str], target: Path) -> dict[str, Path]:
    """Processor folders as given; without any, three families of ../shared."""
    if names:
        return {Path(name).name: Path(name) for name in names}
    sys.path.insert(0, str(SHARED))
    try:
        from materialize import materialize  # noqa: PLC0415 - a script beside the repository, which may be absent
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
    for column in ("processor", "tokens", "render", "tokenise", "mask", "mask / both", "encode_sample / both"):
        table.add_column(column, justify="left" if column == "processor" else "right")
    costs = []
    with tempfile.TemporaryDirectory() as target:
        for name, folder in folders(options.processor, Path(target)).items():
            encoder = text_encoder(folder)
            spent = measure(encoder, options.rounds)
            both = spent["render"] + spent["tokenise"]
            mask = spent["text side"] - both
            costs.append(mask / both)
            numbers = (f"{number * 1e3:.2f}" for number in (spent["render"], spent["tokenise"], mask))
            whole = spent["encode_sample"] / both
            table.add_row(
                name, str(encoder.encode_sample(chat()).num_tokens), *numbers, f"{costs[-1]:.1%}", f"{whole:.0%}"
            )
    if not costs:
        console.print(f"no processors: name folders, or put them under {SHARED}")
        return
    console.print(table)
    console.print(f"mask cost: at most {max(costs):.1%} of rendering and tokenising (goal: at most {GOAL:.0%})")


if __name__ == "__main__":
    main()
