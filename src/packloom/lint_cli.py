"""The arguments of ``packloom lint`` go in; what is wrong with a dataset, by kind, and an exit status come out."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.text import Text

from packloom.errors import ConfigError
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
    from packloom.report.lint import Finding, LintReport

EPILOG = "Example: [bold]packloom lint shards/ --processor Qwen/Qwen2.5-VL-7B-Instruct --max-length 8192[/]"


def lint(
    data: Data,
    processor: Annotated[
        str | None, typer.Option(help="Hub name or folder of a processor: encode each sample, as training will.")
    ] = None,
    max_length: Annotated[int | None, typer.Option(min=1, help="Tokens that a sample may have.")] = None,
    min_pixels: MinPixels = None,
    max_pixels: MaxPixels = None,
    config: EncoderConfig = None,
    index_dir: IndexDir = None,
    split: Split = None,
    aux: Aux = None,
    workers: Workers = None,
    show: Annotated[int, typer.Option(min=0, help="Samples to name per kind; --json names all.")] = 10,
    as_json: AsJson = False,
) -> None:
    """Read every sample, cook it, decode its images and (with --processor) encode it; say what is wrong, and where.

    Exit status: 0 nothing is wrong, 1 something is, 2 it could not be checked.
    """
    # Here, so that --help answers without loading torch.
    from packloom.report.lint import lint as run  # noqa: PLC0415

    limits: dict[str, Any] = {
        "max_length": max_length,
        "min_pixels": min_pixels,
        "max_pixels": max_pixels,
        "config": config,
    }
    if processor is None and any(limits.values()):
        named = ", ".join(f"--{name.replace('_', '-')}" for name, value in limits.items() if value)
        raise ConfigError(f"{named} means nothing without --processor: name the model's processor too")
    encoder = EncoderSpec(processor=processor, **limits) if processor is not None else None
    report = run(data_spec(data, index_dir, split, aux), encoder, num_workers=num_workers(workers))
    if as_json:
        typer.echo(json.dumps(report.as_dict()))
    else:
        _print(report, Console(highlight=False), data[0], show)
    if not report.ok:
        raise typer.Exit(1)


def _print(report: LintReport, console: Console, path: str, show: int) -> None:
    def say(*pieces: str | tuple[str, str]) -> None:
        console.print(Text.assemble(*pieces), soft_wrap=True)

    for group in report.groups():
        say((f"{group.code}", "bold red"), f"  × {len(group.findings):,}")
        for finding in group.findings[:show]:
            say("  ", (_line(finding.key), "bold"), f"  {_line(finding.reason)}", (_place(finding), "dim"))
        if len(group.findings) > show:
            say((f"  … and {len(group.findings) - show:,} more: --show {len(group.findings)}, or --json", "dim"))
        say(("  Next: ", "bold"), _line(group.next_move))
    done = "read, cooked, encoded and decoded" if report.with_encoder else "read and cooked, images and audio decoded"
    say(f"{report.num_samples:,} samples {done}: ", (f"{report.num_good:,} good", "green"), _summary(report))
    if report.ok and not report.with_encoder:
        say(("Next: ", "bold"), f"packloom lint {path} --processor NAME  (encodes them too, as training will)")
    elif report.ok:
        say(("Next: ", "bold"), f"packloom stats {path} --processor NAME  (lengths, fill and steps per epoch)")


def _summary(report: LintReport) -> str:
    if report.ok:
        return ""
    return f", {len(report.findings):,} findings of {len(report.groups())} kinds"


def _place(finding: Finding) -> str:
    return "" if finding.place in (finding.key, "") or finding.place in finding.reason else f"  {finding.place}"


def _line(text: str) -> str:
    from packloom.inspect import printable  # noqa: PLC0415

    return printable(text).replace("\n", "\\n")
