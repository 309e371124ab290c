"""The arguments of ``packloom stats`` go in; token lengths, the fill of packs and steps per epoch come out."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from packloom.report.arguments import (
    AsJson,
    Aux,
    Data,
    EncoderConfig,
    IndexDir,
    MaxPixels,
    MinPixels,
    Split,
    Workers,
    data_spec,
    num_workers,
)
from packloom.report.spec import EncoderSpec

if TYPE_CHECKING:
    from packloom.report.histogram import Histogram
    from packloom.report.stats import Stats
    from packloom.report.steps import Steps

EPILOG = (
    "Example: [bold]packloom stats shards/ --processor Qwen/Qwen2.5-VL-7B-Instruct --pack-length 4096"
    " --pack-length 8192 --dp-size 8[/]"
)


def stats(
    data: Data,
    processor: Annotated[str, typer.Option(help="Hub name or folder of the model's processor.")],
    pack_length: Annotated[list[int] | None, typer.Option(min=1, help="Repeatable; default: 8192.")] = None,
    micro_batch: Annotated[
        list[int] | None, typer.Option(min=1, help="Rows of padded batches to plan for, too; repeatable.")
    ] = None,
    dp_size: Annotated[list[int] | None, typer.Option(min=1, help="Data-parallel ranks; repeatable.")] = None,
    segment_multiple: Annotated[int, typer.Option(min=1, help="Each sample is padded to a multiple of this.")] = 1,
    tail: Annotated[str, typer.Option(help="The end of an epoch: pad, wrap or drop.")] = "pad",
    seed: Annotated[int, typer.Option(help="Of the order that samples are packed in.")] = 0,
    limit: Annotated[
        int, typer.Option(min=0, help="Measure so many samples, evenly spread, and estimate the rest; 0: all.")
    ] = 0,
    min_pixels: MinPixels = None,
    max_pixels: MaxPixels = None,
    config: EncoderConfig = None,
    index_dir: IndexDir = None,
    split: Split = None,
    aux: Aux = None,
    workers: Workers = None,
    cache: Annotated[
        Path | None, typer.Option(help="Folder that keeps lengths for the next time; default: none are kept.")
    ] = None,
    plot: Annotated[Path | None, typer.Option(help="Draw it into this .png, .svg, .pdf or .html file.")] = None,
    as_json: AsJson = False,
) -> None:
    """Measure exact token lengths, no image decoded; say how full packs will be and how many steps an epoch has.

    Exit status: 0 done, 2 it could not be measured.
    """
    # Here, so that --help answers without loading torch.
    from packloom.report.plot import check_plot, write_plot  # noqa: PLC0415
    from packloom.report.stats import Shape, measure_stats  # noqa: PLC0415

    if plot is not None:
        check_plot(plot)  # before the work
    found = measure_stats(
        data_spec(data, index_dir, split, aux),
        EncoderSpec(processor=processor, min_pixels=min_pixels, max_pixels=max_pixels, config=config),
        Shape(
            pack_lengths=tuple(pack_length or (8192,)),
            micro_batch_sizes=tuple(micro_batch or ()),
            dp_sizes=tuple(dp_size or (1,)),
            segment_multiple=segment_multiple,
            tail=tail,  # type: ignore[arg-type]
            seed=seed,
        ),
        limit=limit or None,
        num_workers=num_workers(workers),
        cache_dir=None if cache is None else str(cache),
    )
    if plot is not None:
        write_plot(found, plot)
    if as_json:
        typer.echo(json.dumps({**found.as_dict(), "plot": None if plot is None else str(plot)}))
    else:
        _print(found, Console(highlight=False), plot)


def _print(found: Stats, console: Console, plot: Path | None) -> None:
    totals = found.totals
    part = "" if totals["is_exact"] else f" ({totals['num_measured']:,} of them measured)"
    console.print(f"{totals['num_samples']:,} samples{part}, {totals['tokens']:,} tokens", soft_wrap=True)
    trained = f"{totals['supervised_tokens']:,} tokens ({totals['supervised_share']:.1%}) are trained on"
    console.print(f"{totals['media_tokens']:,} are media tokens; {trained}", soft_wrap=True)
    marks = " · ".join(f"{percent} % ≤ {value:,}" for percent, value in totals["percentiles"].items())
    console.print(
        f"lengths {totals['min']:,} to {totals['max']:,}, mean {totals['mean']:,.1f}; {marks}", soft_wrap=True
    )
    for title, shown in (
        ("samples by tokens", found.tokens),
        ("samples by media tokens, where there are any", found.media_tokens),
        ("samples by the share that is trained on, in %", found.supervised),
    ):
        _print_histogram(console, title, shown)
    console.print()
    console.print(_steps_table(found.steps))
    for code, count in totals["refused"].items():
        console.print(Text(f"refused: {count:,} × {code}", style="yellow"), soft_wrap=True)
    if plot is not None:
        console.print(Text(f"drawn: {plot}"), soft_wrap=True)
    _print_next(found, console)


def _print_histogram(console: Console, title: str, shown: Histogram) -> None:
    if shown.counts:
        console.print(Text.assemble("\n", (title, "bold")), soft_wrap=True)
        for line in shown.lines():
            console.print(f"  {line}", soft_wrap=True)


def _steps_table(steps: tuple[Steps, ...]) -> Table:
    table = Table(title="one epoch", title_justify="left")
    table.add_column("batches")
    for name in ("dp", "steps per rank", "fill", "samples", "too long"):
        table.add_column(name, justify="right")
    for item in steps:
        table.add_row(*_cells(item))
    return table


def _cells(item: Steps) -> tuple[Any, ...]:
    exact = item.low == item.high == item.steps
    count = f"{item.steps:,}" if exact else f"≈ {item.steps:,} ({item.low:,} – {item.high:,})"
    kind = f"packs of {item.length:,}" if item.layout == "packed" else f"{item.micro_batch_size:,} padded rows"
    return kind, f"{item.dp_size:,}", count, f"{item.fill:.1%}", f"{item.num_samples:,}", f"{item.num_too_long:,}"


def _print_next(found: Stats, console: Console) -> None:
    if found.lengths.refused:
        move = "packloom lint DATA --processor NAME  (names each refused sample and why)"
    elif not found.lengths.is_exact:
        move = "run it again without --limit: the steps are then exact"
    else:
        move = "packloom inspect DATA --processor NAME  (look at the samples)"
    console.print(Text.assemble(("Next: ", "bold"), move), soft_wrap=True)
