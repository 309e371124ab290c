"""The arguments of ``packloom bench`` go in, the speed of a loader on this machine comes out."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

if TYPE_CHECKING:
    from packloom.bench import Speed

EPILOG = "Example: [bold]packloom bench --data shards/ --processor Qwen/Qwen2.5-VL-7B-Instruct --workers 2 --json[/]"

#: field → (what it says, how it is written)
_ROWS = {
    "samples_per_s": ("samples/s", "{:,.1f}"),
    "tokens_per_s": ("tokens/s", "{:,.0f}"),
    "loss_tokens_per_s": ("trained tokens/s", "{:,.0f}"),
    "bytes_per_sample": ("bytes per sample leaving a worker", "{:,.0f}"),
    "fill": ("fill", "{:.1%}"),
    "peak_rss_mb": ("peak memory with workers, MiB", "{:,.0f}"),
    "first_batch_s": ("first batch after, s", "{:.2f}"),
    "num_samples": ("samples measured", "{:,}"),
    "num_skipped": ("samples skipped", "{:,}"),
}


def bench(
    data: Annotated[str, typer.Option(help="Shards: a folder, a tar or a brace pattern.")],
    processor: Annotated[str, typer.Option(help="Hub name or folder of the model's processor.")],
    workers: Annotated[int, typer.Option(min=0, help="Worker processes; 0 loads in this one.")] = 1,
    pack_length: Annotated[int, typer.Option(min=1, help="Tokens of a pack.")] = 8192,
    min_pixels: Annotated[int | None, typer.Option(help="Lower bound on an image's area.")] = None,
    max_pixels: Annotated[int | None, typer.Option(help="Upper bound on an image's area.")] = None,
    media: Annotated[str, typer.Option(help="fast, or exact_hf: the processor's own floats.")] = "fast",
    pixels: Annotated[str, typer.Option(help="Whose resizing: auto, torchvision or pil.")] = "auto",
    seconds: Annotated[float, typer.Option(min=0.1, help="How long to measure.")] = 20.0,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object on stdout.")] = False,
) -> None:
    """Measure how fast this machine turns these shards into batches for this model.

    Exit status: 0 measured, 2 could not be measured.
    """
    # Here, so that --help answers without loading torch.
    import torch  # noqa: PLC0415

    from packloom.bench import measure  # noqa: PLC0415
    from packloom.loader import build_loader  # noqa: PLC0415
    from packloom.task_encoders import TaskEncoder  # noqa: PLC0415

    torch.set_num_threads(1)  # what a worker of a DataLoader has
    encoder = TaskEncoder.from_pretrained(
        processor,
        max_length=pack_length,
        min_pixels=min_pixels,
        max_pixels=max_pixels,
        media=_one_of(media, ("fast", "exact_hf"), "--media"),
        pixels=_one_of(pixels, ("auto", "torchvision", "pil"), "--pixels"),
    )
    speed = measure(build_loader(data, encoder, pack_length=pack_length, num_workers=workers), seconds=seconds)
    if as_json:
        typer.echo(json.dumps(speed.as_dict()))
    else:
        Console().print(as_table(speed, workers))


def _one_of(value: str, known: tuple[str, ...], option: str) -> Any:
    if value not in known:
        raise typer.BadParameter(f"{value!r} is none of {', '.join(known)}", param_hint=option)
    return value


def as_table(speed: Speed, workers: int) -> Table:
    """For people."""
    table = Table(title=f"{workers} worker(s)", show_header=False, title_justify="left")
    values = speed.as_dict()
    for name, (label, form) in _ROWS.items():
        table.add_row(label, form.format(values[name]))
    return table
