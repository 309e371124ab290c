"""The arguments of ``packloom plan`` go in; a file that says which samples share a pack, and its figures, come out."""

from __future__ import annotations

import json
from dataclasses import asdict, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.text import Text

from packloom.errors import ConfigError
from packloom.report.arguments import (
    AsJson,
    Aux,
    IndexDir,
    MaxPixels,
    MinPixels,
    Split,
    Workers,
    data_spec,
    num_workers,
)

if TYPE_CHECKING:
    from packloom.loader import PlanReport

EPILOG = (
    "Example: [bold]packloom plan shards/ --processor Qwen/Qwen2.5-VL-7B-Instruct --pack-length 8192 --epochs 3"
    " --out plan.parquet[/]"
)
#: Bad samples that are shown; ``--json`` gives all.
_SHOWN = 10


def plan(
    processor: Annotated[str, typer.Option(help="Hub name or folder of the model's processor.")],
    out: Annotated[Path, typer.Option(help="The parquet file to write.")],
    data: Annotated[
        list[str] | None, typer.Argument(help="Indexed shards: folders, tars or brace patterns; or a blend.yaml.")
    ] = None,
    config: Annotated[Path | None, typer.Option(help="YAML of a DataConfig, instead of DATA and what follows.")] = None,
    pack_length: Annotated[int, typer.Option(min=1, help="Tokens of a pack.")] = 8192,
    max_length: Annotated[int | None, typer.Option(min=1, help="Of the encoder; default: the pack length.")] = None,
    max_patches: Annotated[int | None, typer.Option(min=1, help="Vision patches of a pack; default: any.")] = None,
    segment_multiple: Annotated[int, typer.Option(min=1, help="Each sample is padded to a multiple of this.")] = 1,
    min_pixels: MinPixels = None,
    max_pixels: MaxPixels = None,
    epochs: Annotated[int, typer.Option(min=1, help="Epochs to plan, each packed differently.")] = 1,
    seed: Annotated[int, typer.Option(help="That of the run.")] = 0,
    index_dir: IndexDir = None,
    split: Split = None,
    aux: Aux = None,
    balance_ranks: Annotated[
        int, typer.Option(min=1, help="Steps are even for each number of data-parallel ranks that divides this.")
    ] = 96,
    cache: Annotated[
        Path | None, typer.Option(help="Folder that keeps lengths; default: .packloom-lengths beside the plan.")
    ] = None,
    workers: Workers = None,
    as_json: AsJson = False,
) -> None:
    """Choose for whole epochs which samples share a pack, with all lengths in sight; no image is decoded.

    Exit status: 0 planned, 1 planned without samples that are bad, 2 there is no plan.
    """
    # Here, so that --help answers without loading torch.
    from packloom.config import DataConfig, PackingConfig, SampleConfig  # noqa: PLC0415
    from packloom.loader import make_plan  # noqa: PLC0415
    from packloom.report.samples import source_config  # noqa: PLC0415
    from packloom.task_encoders import TaskEncoder  # noqa: PLC0415

    if (config is None) == (not data):
        raise ConfigError("name DATA, or a --config that does, and not both")
    settings = (
        DataConfig.from_yaml(config)
        if config is not None
        else DataConfig(
            source=replace(source_config(data_spec(data or (), index_dir, split, aux), seed=seed), epochs=epochs),
            sample=SampleConfig(max_length=max_length or pack_length, min_pixels=min_pixels, max_pixels=max_pixels),
            packing=PackingConfig(pack_length=pack_length, max_patches=max_patches, segment_multiple=segment_multiple),
        )
    )
    sample = {item.name: getattr(settings.sample, item.name) for item in fields(settings.sample)}
    report = make_plan(
        settings,
        TaskEncoder.from_pretrained(processor, **sample),
        out,
        cache_dir=cache,
        balance_ranks=balance_ranks,
        progress=True,
        num_workers=num_workers(workers),
    )
    if as_json:
        typer.echo(json.dumps(asdict(report)))
    else:
        _print(report, Console(highlight=False))
    if report.faults:
        raise typer.Exit(1)


def _print(report: PlanReport, console: Console) -> None:
    packs = " + ".join(f"{number:,}" for number in report.num_packs)
    console.print(
        f"{report.num_samples:,} samples ({report.num_measured:,} measured now), {packs} packs", soft_wrap=True
    )
    console.print(f"fill {report.fill:.2%}", soft_wrap=True)
    console.print(
        f"steps of 8 ranks take {report.imbalance:.4f} of what even ones would (in random order"
        f" {report.imbalance_unbalanced:.4f})",
        soft_wrap=True,
    )
    for code, number in report.left_out.items():
        console.print(Text(f"left out: {number:,} × {code}", style="yellow"), soft_wrap=True)
    for record in report.faults[:_SHOWN]:
        console.print(Text(f"{record.key} of {record.source}: {record.code}: {record.reason}"), soft_wrap=True)
    if len(report.faults) > _SHOWN:
        console.print(f"... and {len(report.faults) - _SHOWN} more: --json gives all", soft_wrap=True)
    text = f"Next: build_loader(..., plan={report.path!r}) with the same settings"
    console.print(Text(text, style="bold"), soft_wrap=True)
