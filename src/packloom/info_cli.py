"""The arguments of ``packloom info`` go in; what lies in a dataset comes out."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.text import Text

from packloom.report.arguments import AsJson, Aux, IndexDir, IndexedData, Split, data_spec

if TYPE_CHECKING:
    from packloom.report.info import Info

EPILOG = "Example: [bold]packloom info shards/[/]"
#: Talks that are read of a large dataset.
_READ = 10_000
#: Rows of a list of counts.
_SHOWN = 12


def info(
    data: IndexedData,
    limit: Annotated[
        int, typer.Option(min=0, help="Samples whose talks are read, evenly spread over the dataset; 0: all.")
    ] = _READ,
    index_dir: IndexDir = None,
    split: Split = None,
    aux: Aux = None,
    as_json: AsJson = False,
) -> None:
    """Show what lies in a dataset: shards, samples, parts, sizes, images, roles, turns and problems.

    Exit status: 0 done, 2 it could not be read.
    """
    # Here, so that --help answers without loading torch.
    from packloom.report.info import describe_dataset  # noqa: PLC0415

    found = describe_dataset(data_spec(data, index_dir, split, aux), limit=limit or None)
    if as_json:
        typer.echo(json.dumps(found.as_dict()))
    else:
        _print(found, Console(highlight=False))


def _print(found: Info, console: Console) -> None:
    from packloom.inspect import printable  # noqa: PLC0415

    def say(*pieces: str | tuple[str, str]) -> None:
        console.print(Text.assemble(*pieces), soft_wrap=True)

    say((printable(found.path), "bold"), ("  fingerprint " + found.fingerprint[:16], "dim"))
    say(f"{found.num_shards:,} shards, {found.num_samples:,} samples, {_size(found.num_bytes)}")
    say("\n", ("parts", "bold"))
    for part in found.parts[:_SHOWN]:
        mean = _size(part.num_bytes / part.count)
        say(f"  {printable(part.name):12} {part.count:>10,}   {_size(part.num_bytes):>10}   {mean:>10} each")
    if len(found.parts) > _SHOWN:
        say((f"  … and {len(found.parts) - _SHOWN} more names: --json lists all", "dim"))
    if found.widths:
        say("\n", ("images by their longer side, in pixels", "bold"))
        for line in found.sides.lines():
            say(f"  {line}")
    read = "" if found.num_read == found.num_samples else f" (of {found.num_read:,} samples, evenly spread)"
    _table(console, f"messages by role{read}", found.roles)
    _table(console, f"samples by assistant turns{read}", {str(k): v for k, v in sorted(found.turns.items())})
    _table(console, f"samples by images{read}", {str(k): v for k, v in sorted(found.images.items())})
    _table(console, f"problems{read}", found.problems)
    say("\n", ("Next: ", "bold"), f"packloom lint {found.path}" + ("" if found.problems else " --processor NAME"))


def _table(console: Console, title: str, counts: Mapping[str, int]) -> None:
    if not counts:
        return
    console.print(Text.assemble("\n", (title, "bold")), soft_wrap=True)
    longest = max(map(len, counts))
    for name, count in list(counts.items())[:_SHOWN]:
        console.print(Text(f"  {name:>{longest}} {count:>10,}"), soft_wrap=True)
    if len(counts) > _SHOWN:
        console.print(Text(f"  … and {len(counts) - _SHOWN} more: --json lists all", style="dim"), soft_wrap=True)


def _size(num_bytes: float) -> str:
    for unit in ("B", "KiB", "MiB", "GiB", "TiB"):
        if num_bytes < 1024 or unit == "TiB":
            return f"{num_bytes:,.0f} {unit}" if unit == "B" else f"{num_bytes:,.1f} {unit}"
        num_bytes /= 1024
    return ""
