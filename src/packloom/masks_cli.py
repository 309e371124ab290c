"""The arguments of ``packloom masks`` go in; a report on assistant masks and a sample in colours come out."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from packloom.errors import ConfigError, SampleError

if TYPE_CHECKING:
    from packloom.task_encoders import TaskEncoder
    from packloom.testing import MaskReport, Snapshot

EPILOG = "Example: [bold]packloom masks ./my-model --snapshot masks.json[/], later [bold]--check masks.json[/]"
#: Failures and changes that are shown; ``--json`` gives all.
_SHOWN = 20


def masks(
    processor: Annotated[
        str, typer.Argument(help="Hub name or folder of a processor, or of a text model's tokenizer.")
    ],
    model_type: Annotated[str | None, typer.Option(help="The family; default: told by the processor.")] = None,
    chat_template: Annotated[
        Path | None, typer.Option(help="A file with a chat template (Jinja) to use instead of the processor's own.")
    ] = None,
    loss_on: Annotated[str | None, typer.Option(help="all_turns (default), last_turn or all_text.")] = None,
    thinking: Annotated[str | None, typer.Option(help="supervise (default), keep or drop.")] = None,
    control_tokens: Annotated[str | None, typer.Option(help="refuse (default) or neutralise.")] = None,
    train_terminator: Annotated[bool, typer.Option(help="Whether the token that ends a turn is trained on.")] = True,
    show: Annotated[
        str | None, typer.Option(help="Name of the case to show in colours, e.g. '1 turn · emoji'.")
    ] = None,
    snapshot: Annotated[Path | None, typer.Option(help="Write the tokens and masks into this golden file.")] = None,
    check: Annotated[Path | None, typer.Option(help="Compare with this golden file; any changed token fails.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="The report as JSON on stdout, all cases in it.")] = False,
) -> None:
    """Check what a processor's assistant masks train on, over several hundred conversations, and show one of them.

    Exit status: 0 all is right, 1 a case failed or a token changed, 2 it could not be checked.
    """
    # Here, so that --help answers without loading torch.
    from packloom.testing import check_masks, read_snapshot, take_snapshot, write_snapshot  # noqa: PLC0415

    _refuse_both(snapshot, check)
    golden = read_snapshot(check) if check else None
    encoder = _load(
        processor,
        model_type,
        chat_template,
        {
            "loss_on": loss_on,
            "thinking": thinking,
            "control_tokens": control_tokens,
            "train_terminator": train_terminator,
        },
    )
    report = check_masks(encoder)
    taken = take_snapshot(encoder) if golden or (snapshot and report.ok) else None
    differences = _compare(golden, taken)
    if as_json:
        typer.echo(json.dumps({**report.as_dict(), **differences}))
    else:
        _print(Console(), report, _shown(encoder, show), differences)
    if snapshot and taken:
        write_snapshot(taken, snapshot)
        _say(f"written: {snapshot}. Next: packloom masks {processor} --check {snapshot}")
    elif snapshot:
        _say(f"{snapshot} is not written, for a case failed")
    if not report.ok or differences["changes"]:
        raise typer.Exit(1)


def _refuse_both(snapshot: Path | None, check: Path | None) -> None:
    if snapshot and check:
        raise ConfigError("--snapshot writes a golden file and --check compares with one: give one of them")


def _load(processor: str, model_type: str | None, chat_template: Path | None, settings: dict[str, Any]) -> TaskEncoder:
    from packloom.task_encoders import TaskEncoder  # noqa: PLC0415

    try:
        template = chat_template.read_text(encoding="utf-8") if chat_template else None
    except (OSError, ValueError) as error:
        raise ConfigError(f"cannot read the chat template {chat_template}: {error}") from error
    return TaskEncoder.from_pretrained(
        processor,
        model_type=model_type,
        chat_template=template,
        **{name: value for name, value in settings.items() if value is not None},
    )


def _compare(golden: Snapshot | None, taken: Snapshot | None) -> dict[str, list[str]]:
    """What changed since the golden file, and what may explain it."""
    from packloom.testing import compare_snapshots, facts_that_differ  # noqa: PLC0415

    if golden is None or taken is None:
        return {"changes": [], "facts": []}
    return {
        "changes": list(map(str, compare_snapshots(golden, taken))),
        "facts": facts_that_differ(golden, taken),
    }


def _shown(encoder: TaskEncoder, name: str | None) -> Text:
    """The case of that name in colours, under its name."""
    from packloom.testing.colours import LEGEND, coloured  # noqa: PLC0415
    from packloom.testing.matrix import built_in_cases, shown_case  # noqa: PLC0415

    cases = {case.name: case for case in built_in_cases(encoder)}
    name = name or shown_case(encoder).name
    if name not in cases:
        raise ConfigError(f"there is no case {name!r}; one of them is {next(iter(cases))!r}, --json names them all")
    try:
        sample = encoder.encode_sample(cases[name].chat)
    except SampleError as error:
        return Text(f"{name}: {error.reason}\n")
    return Text.assemble((f"{name}\n", "bold"), (f"{LEGEND}\n", "dim"), coloured(encoder, sample), "\n")


def _print(console: Console, report: MaskReport, sample: Text, differences: dict[str, list[str]]) -> None:
    table = Table(title=report.title, title_justify="left")
    table.add_column("texts")
    for outcome in ("ok", "refused", "FAILED"):
        table.add_column(outcome, justify="right")
    table.add_column("trained on, or why not", overflow="fold")
    for group in report.groups():
        style = "red" if group.counts["FAILED"] else None
        numbers = [str(group.counts[outcome]) for outcome in ("ok", "refused", "FAILED")]
        table.add_row(group.name, *numbers, Text(group.shown), style=style)
    console.print(table)
    console.print(sample, soft_wrap=True)
    lines = [f"FAILED {case.name}: {case.message}" for case in report.failed]
    lines += [f"CHANGED {change}" for change in differences["changes"]]
    for line in [*lines[:_SHOWN], *[f"… and {len(lines) - _SHOWN} more (--json gives all)"] * (len(lines) > _SHOWN)]:
        console.print(Text(line, style="red"), soft_wrap=True)
    for line in (*(f"differs: {fact}" for fact in differences["facts"]), *(f"note: {note}" for note in report.notes)):
        console.print(Text(line, style="dim"), soft_wrap=True)


def _say(line: str) -> None:
    Console(stderr=True).print(line, soft_wrap=True, markup=False)
