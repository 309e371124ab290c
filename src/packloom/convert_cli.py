"""The arguments of ``packloom convert`` go in, shards and a summary of what became of each row come out."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from packloom.errors import ConfigError
from packloom.report.arguments import num_workers

if TYPE_CHECKING:
    from packloom.datasets.convert import ConvertConfig, ConvertReport, RunSettings
    from packloom.datasets.convert.find import Found
    from packloom.datasets.convert.plan import Plan

EPILOG = "Example: [bold]packloom convert llava.json shards/ --media-root coco/ --workers 8[/]"


def convert(
    source: Annotated[
        str, typer.Argument(help="Lance, parquet, Hugging Face dataset, JSON or JSONL, image folder, or tar shards.")
    ],
    target: Annotated[Path, typer.Argument(help="Folder for the shards.")],
    config: Annotated[Path | None, typer.Option(help="YAML file with settings; options override it.")] = None,
    kind: Annotated[
        str | None, typer.Option("--from", help="lance, parquet, hf, json, folder or tar; default: what lies there.")
    ] = None,
    columns: Annotated[
        list[str] | None, typer.Option("--map", help="FIELD=COLUMN, e.g. messages=chat, images=front; repeatable.")
    ] = None,
    drop: Annotated[list[str] | None, typer.Option(help="A column to leave out; repeatable.")] = None,
    media_root: Annotated[str | None, typer.Option(help="Folder that relative paths of media start from.")] = None,
    media_table: Annotated[str | None, typer.Option(help="Lance or parquet table that holds media by key.")] = None,
    media_key: Annotated[str | None, typer.Option(help="Its column of keys; default: id.")] = None,
    media_value: Annotated[str | None, typer.Option(help="Its column of bytes; default: image.")] = None,
    row_filter: Annotated[str | None, typer.Option("--filter", help="SQL that keeps rows of a Lance dataset.")] = None,
    version: Annotated[int | None, typer.Option(help="Version of a Lance dataset; default: the newest.")] = None,
    split: Annotated[str | None, typer.Option(help="Split of a Hugging Face dataset or of parquet files.")] = None,
    subset: Annotated[str | None, typer.Option(help="Configuration of a Hugging Face dataset.")] = None,
    samples_per_shard: Annotated[int | None, typer.Option(min=1, help="Default: 1000.")] = None,
    max_shard_bytes: Annotated[int | None, typer.Option(min=1, help="Default: 1 GiB.")] = None,
    shuffle: Annotated[bool, typer.Option("--shuffle", help="Write all rows in a random order.")] = False,
    seed: Annotated[int | None, typer.Option(help="Of the random order; default: 0.")] = None,
    check: Annotated[
        bool | None, typer.Option("--check/--no-check", help="Refuse what cannot be trained on; default: not for tars.")
    ] = None,
    workers: Annotated[int | None, typer.Option(min=0, help="Processes; default: one per CPU core, at most 8.")] = None,
    runner: Annotated[str, typer.Option(help="local, or ray: on a Ray cluster.")] = "local",
    ray_address: Annotated[str | None, typer.Option(help="Of the cluster; default: the one that Ray finds.")] = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Remove an earlier conversion first.")] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show what would be done, and stop.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="The result as JSON on stdout; the rest on stderr.")] = False,
) -> None:
    """Write any dataset as tar shards with an index, images byte for byte. If stopped, run it again: it goes on.

    Exit status: 0 every row is a sample, 1 some rows are in the quarantine file, 2 it could not be done.
    """
    # Here, so that --help answers without loading torch.
    from packloom.datasets.convert import convert as run  # noqa: PLC0415

    options: dict[str, Any] = {
        "kind": kind, "drop": tuple(drop or ()), "media_root": media_root, "media_table": media_table,
        "media_key": media_key, "media_value": media_value, "filter": row_filter, "version": version, "split": split,
        "subset": subset, "samples_per_shard": samples_per_shard, "max_shard_bytes": max_shard_bytes,
        "shuffle": shuffle, "seed": seed, "columns": tuple(map(_pair, columns or ())),
    }  # fmt: skip
    settings = _run_settings(workers, runner, ray_address, overwrite=overwrite, dry_run=dry_run)
    console = Console(stderr=as_json, quiet=as_json and not sys.stderr.isatty())
    chosen = _config(config, options)
    try:
        report = run(
            source,
            target,
            chosen,
            settings=settings,
            check=_check(source, chosen, check),
            announce=lambda found, plan: _announce(found, plan, console),
        )
    finally:
        if settings.runner is not None:
            settings.runner.close()
    if as_json:
        typer.echo(json.dumps(report_as_dict(report)))
    elif not dry_run:
        _print(report, target, console)
    if report.num_bad:
        raise typer.Exit(1)


def report_as_dict(report: ConvertReport) -> dict[str, Any]:
    """Plain data for ``--json``."""
    return {
        "num_rows": report.num_rows,
        "num_samples": report.num_samples,
        "num_quarantined": report.num_bad,
        "reasons": dict(sorted(report.codes.items())),
        "quarantine": str(report.quarantine) if report.quarantine else None,
        "num_shards": len(report.shards),
        "num_bytes": sum(entry.num_bytes for entry in report.shards),
        "fingerprint": report.fingerprint,
        "num_resumed": report.num_resumed,
        "was_finished": report.was_finished,
    }


def _pair(text: str) -> tuple[str, str]:
    field, equals, column = text.partition("=")
    if not equals:
        raise ConfigError(f"--map {text!r} is not FIELD=COLUMN")
    return field.strip(), column.strip()


def _config(path: Path | None, options: dict[str, Any]) -> ConvertConfig:
    from packloom.datasets.convert import ConvertConfig, read_config  # noqa: PLC0415

    values = read_config(path) if path is not None else {}
    values |= {name: value for name, value in options.items() if not (value is None or value is False or value == ())}
    return ConvertConfig(**values)


def _run_settings(
    workers: int | None, runner: str, address: str | None, *, overwrite: bool, dry_run: bool
) -> RunSettings:
    from packloom.datasets.convert import RayProcesses, RunSettings  # noqa: PLC0415

    if runner not in ("local", "ray"):
        raise ConfigError(f"--runner must be local or ray, got {runner!r}")
    if runner == "ray" and not dry_run:
        cluster = RayProcesses(address=address, num_workers=workers or None)
        return RunSettings(runner=cluster, progress=True, overwrite=overwrite)
    return RunSettings(num_workers=num_workers(workers), progress=True, overwrite=overwrite, dry_run=dry_run)


def _check(source: str, config: ConvertConfig, wanted: bool | None) -> Any:
    """The encoders' own reading of a sample; tar shards may hold layouts that only their user's cooker knows."""
    from packloom.datasets.convert.find import guess_kind  # noqa: PLC0415
    from packloom.task_encoders.cookers import cook  # noqa: PLC0415

    is_wanted = (config.kind or guess_kind(source)) != "tar" if wanted is None else wanted
    return cook if is_wanted else None


def _announce(found: Found, plan: Plan, console: Console) -> None:
    """What is known before anything is written."""
    from packloom.datasets.convert.source import printable  # noqa: PLC0415

    source = found.source
    console.print(
        f"{source.kind}: {source.num_rows} rows in {plan.num_tasks} tasks"
        f"{', shuffled' if plan.shuffle_key is not None else ''}",
        highlight=False,
    )
    columns = found.columns
    if columns is None:
        console.print("samples pass as they are", highlight=False)
        return
    seen = {column.name: column.type for column in source.columns or ()}
    table = Table("column", "holds", "becomes", box=None, pad_edge=False)
    for field, name in columns.fields:
        table.add_row(escape(printable(name)), seen.get(name, ""), field)
    for kind, name in columns.media:
        if name in seen or not columns.keeps_unknown:
            table.add_row(escape(printable(name)), seen.get(name, ""), f"{kind} files")
    for name in columns.kept:
        table.add_row(escape(printable(name)), seen.get(name, ""), "kept")
    for name, why in columns.left_out:
        table.add_row(escape(printable(name)), seen.get(name, ""), f"[yellow]left out[/]: {escape(why)}")
    console.print(table)


def _print(report: ConvertReport, target: Path, console: Console) -> None:
    def say(text: str) -> None:
        console.print(text, soft_wrap=True, highlight=False)

    if report.was_finished:
        say(f"nothing to do: {len(report.shards)} shards verified against their digests")
    say(f"{report.num_rows} rows = {report.num_samples} samples + {report.num_bad} quarantined")
    if report.num_resumed and not report.was_finished:
        say(f"{report.num_resumed} rows were done by an earlier run")
    size = sum(entry.num_bytes for entry in report.shards) / 1e6
    say(f"{escape(str(target))}: {len(report.shards)} shards, {size:.1f} MB, fingerprint {report.fingerprint[:16]}")
    for code, count in report.codes.most_common():
        say(f"[yellow]{count} quarantined[/] by {code}")
    if report.quarantine is not None:
        say(f"[bold]Next:[/] look at {escape(str(report.quarantine))}, which names each row and its reason")
    else:
        say(f"[bold]Next:[/] packloom.build_loader({str(target)!r}, encoder)")
