"""The arguments of ``packloom index`` go in, an index and a summary of what was found come out."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.markup import escape

from packloom.report.arguments import Workers, num_workers

if TYPE_CHECKING:
    from packloom.datasets import IndexReport

EPILOG = "Example: [bold]packloom index shards/ --workers 8[/]"
#: Faults that the summary names; ``--json`` gives all.
_SHOWN_FAULTS = 10


def index(
    paths: Annotated[
        list[str], typer.Argument(help="Folders of tar shards, tars or brace patterns; local, or urls (s3, gcs, http).")
    ],
    index_dir: Annotated[
        str | None, typer.Option(help="Folder for the index; default: .packloom beside the shards.")
    ] = None,
    workers: Workers = None,
    rebuild: Annotated[
        bool, typer.Option("--rebuild", help="Index anew what has not changed since the last time, too.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="The result as JSON on stdout; progress on stderr.")] = False,
) -> None:
    """Index tar shards, so that any sample is read at once and a run resumes exactly. If stopped, run it again.

    Exit status: 0 all is indexed, 1 something is damaged and left out, 2 there is no index.
    """
    # Here, so that --help answers without loading torch.
    from packloom.datasets import build_index  # noqa: PLC0415

    report = build_index(paths, index_dir=index_dir, num_workers=num_workers(workers), rebuild=rebuild, progress=True)
    if as_json:
        typer.echo(json.dumps(report_as_dict(report)))
    else:
        _print(report, Console())
    if report.faults or report.failures:
        raise typer.Exit(1)


def report_as_dict(report: IndexReport) -> dict[str, Any]:
    """Plain data for ``--json``."""
    return {
        "num_samples": report.num_samples,
        "num_indexed": report.num_indexed,
        "num_skipped": report.num_skipped,
        "folders": [
            {"path": folder, "num_shards": len(manifest.shards), "num_samples": manifest.num_samples}
            | {"fingerprint": manifest.fingerprint}
            for folder, manifest in report.manifests.items()
        ],
        "faults": [
            {"shard": shard, "key": fault.key, "code": fault.code, "reason": fault.reason}
            for shard, fault in report.faults
        ],
        "failures": [{"shard": shard, "reason": reason} for shard, reason in report.failures],
    }


def _print(report: IndexReport, console: Console) -> None:
    def say(text: str) -> None:
        console.print(text, soft_wrap=True, highlight=False)

    say(f"{report.num_indexed} shards indexed, {report.num_skipped} up to date, {report.num_samples} samples")
    for folder, manifest in report.manifests.items():
        say(f"{escape(folder)}: {len(manifest.shards)} shards, fingerprint {manifest.fingerprint[:16]}")
    for shard, reason in report.failures:
        say(f"[red]no index[/] {escape(shard)}: {escape(reason)}")
    for shard, fault in report.faults[:_SHOWN_FAULTS]:
        say(f"[yellow]left out[/] {escape(fault.key)} ({fault.code}): {escape(fault.reason)}; {escape(shard)}")
    if len(report.faults) > _SHOWN_FAULTS:
        say(f"... and {len(report.faults) - _SHOWN_FAULTS} more: --json lists all")
    if report.failures:
        say("[bold]Next:[/] mend or remove the shards without index, then run this again")
    elif report.faults:
        say("[bold]Next:[/] train without what is left out, or write those shards again and run this again")
    else:
        say(f"[bold]Next:[/] packloom.datasets.open_dataset({next(iter(report.manifests))!r})")
