"""Processors go in, what masks cost beside rendering and tokenising comes out: ``python benchmarks/masks.py``.

The baseline is the least that a training loop does to an 8-turn chat: ``tokenizer.apply_chat_template(messages,
tokenize=False)`` on messages that lie ready, and ``tokenizer(text)`` with its defaults. The text side is all that
packloom does to the same chat from a cooked sample to ids and mask: settle reasoning, search the texts for control
tokens, render, compare with the skeleton, tokenise, look up the edges of turns, prove origins and edges, fill the
mask. The cost of the mask is ``text side / baseline - 1``: nothing of the text side is left out, but the chat's shape
is known (the first row of a shape also renders and searches its skeleton). With an image in the first turn the
baseline tokenises one token for it, as packloom does, though a processor would repeat it hundreds of times.

``encode_sample`` is the whole step on a raw row: JSON, cooking, checks, image header, the text side, expansion,
positions, tensors. All steps alternate in one process that tokenises on one thread. CPU time counts; shares are taken
round by round, so that a busy machine slows both sides of one; of times and shares the median is printed.
"""

from __future__ import annotations

import argparse
import io
import json
import os
import statistics
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

os.environ["TOKENIZERS_PARALLELISM"] = "false"  # one text at a time gains nothing from threads, and timing loses

from PIL import Image
from rich.console import Console
from rich.table import Table

from packloom import TaskEncoder
from packloom.errors import PackloomError
from packloom.types import RawSample

SHARED = Path(__file__).resolve().parent.parent.parent / "shared" / "processors"
FAMILIES = ("qwen2_5_vl", "gemma3", "glm46v")
GOAL = 0.15
WARM_UP = 5
WORDS = "The quick brown fox jumps over the lazy dog and then explains, in some detail, why it did so. "


def messages(*, with_image: bool, turns: int = 8) -> list[dict[str, Any]]:
    """Questions of 40 words and answers of 120; an image before the first question."""
    made: list[dict[str, Any]] = []
    for turn in range(turns):
        question, answer = (
            f"{name} {turn}: {WORDS * times}".strip() for name, times in (("Question", 2), ("Answer", 6))
        )
        made.append({"role": "user", "content": [{"type": "text", "text": question}]})
        made.append({"role": "assistant", "content": [{"type": "text", "text": answer}]})
    if with_image:
        made[0]["content"].insert(0, {"type": "image"})
    return made


def row(*, with_image: bool) -> RawSample:
    """The same chat as a shard gives it."""
    made: RawSample = {"__key__": "bench", "json": json.dumps({"messages": messages(with_image=with_image)}).encode()}
    if with_image:
        picture = io.BytesIO()
        Image.effect_noise((640, 480), 60).convert("RGB").save(picture, "JPEG")
        made["0.jpg"] = picture.getvalue()
    return made


def measure(encoder: TaskEncoder, rounds: int, *, with_image: bool) -> dict[str, list[float]]:
    """Seconds of each step in each round for one chat whose shape is known."""
    raw, ready, tokenizer = row(with_image=with_image), messages(with_image=with_image), encoder.parts.tokenizer
    sample = encoder.cooker(raw)
    layouts = [layout for _, layout in encoder.images.measure(sample.media, encoder.config.limits)]

    def render() -> str:
        return str(tokenizer.apply_chat_template(ready, tokenize=False, chat_template=encoder.parts.chat_template))

    text = render()
    if text != encoder.template.render(sample):
        raise SystemExit(f"{encoder.parts.name}: the baseline renders another text than packloom")
    steps: dict[str, Callable[[], object]] = {
        "render": render,
        "tokenise": lambda: tokenizer(text, add_special_tokens=False)["input_ids"],
        "text side": lambda: encoder.chat.tokenise(encoder.chat.prepare(sample), layouts),
        "encode_sample": lambda: encoder.encode_sample(raw),
    }
    times = defaultdict[str, list[float]](list)
    for _ in range(WARM_UP + rounds):
        for name, step in steps.items():
            started = time.process_time()
            step()
            times[name].append(time.process_time() - started)
    return {name: values[WARM_UP:] for name, values in times.items()}


def share(spent: dict[str, list[float]], step: str) -> float:
    """The median over rounds of a step's time by that of rendering and tokenising."""
    rounds = zip(spent[step], spent["render"], spent["tokenise"], strict=True)
    return statistics.median(seconds / (render + tokenise) for seconds, render, tokenise in rounds)


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


def report(options: argparse.Namespace, table: Table) -> list[float]:
    """Fill the table; the cost of each mask, as a share of the baseline."""
    costs = []
    with tempfile.TemporaryDirectory() as target:
        for name, folder in folders(options.processor, Path(target)).items():
            encoder = TaskEncoder.from_pretrained(folder)
            for with_image in (False, True):
                spent = measure(encoder, options.rounds, with_image=with_image)
                costs.append(share(spent, "text side") - 1)
                tokens = encoder.encode_sample(row(with_image=with_image)).num_tokens
                steps = ("render", "tokenise", "text side")
                milliseconds = (f"{statistics.median(spent[step]) * 1e3:.2f}" for step in steps)
                chat = f"{name} + image" if with_image else name
                table.add_row(
                    chat, str(tokens), *milliseconds, f"{costs[-1]:.1%}", f"{share(spent, 'encode_sample'):.0%}"
                )
    return costs


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("processor", nargs="*", help="processor folders (default: three families of ../shared)")
    parser.add_argument("--rounds", type=int, default=100)
    options = parser.parse_args()
    console = Console(width=120)
    table = Table(title=f"an 8-turn chat, milliseconds, median of {options.rounds} rounds", title_justify="left")
    for column in ("processor", "tokens", "render", "tokenise", "text side", "mask / both", "encode_sample / both"):
        table.add_column(column, justify="left" if column == "processor" else "right")
    try:
        costs = report(options, table)
    except PackloomError as error:
        raise SystemExit(str(error)) from error
    if not costs:
        console.print(f"no processors: name folders, or put them under {SHARED}")
        return
    console.print(table)
    console.print(f"mask cost: at most {max(costs):.1%} of rendering and tokenising (goal: at most {GOAL:.0%})")


if __name__ == "__main__":
    main()
