"""The arguments of ``packloom inspect`` go in; a page, or text, that shows samples as the model sees them comes out."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.text import Text

from packloom.errors import ConfigError
from packloom.report.arguments import AsJson, Aux, Data, EncoderConfig, IndexDir, MaxPixels, MinPixels, Split, data_spec
from packloom.report.spec import EncoderSpec

if TYPE_CHECKING:
    from packloom.report.gallery import Gallery

EPILOG = "Example: [bold]packloom inspect shards/ --processor Qwen/Qwen2.5-VL-7B-Instruct --out inspect.html[/]"


def inspect(
    data: Data,
    processor: Annotated[str, typer.Option(help="Hub name or folder of the model's processor.")],
    out: Annotated[Path, typer.Option(help="The HTML file to write: one file, which works offline.")] = Path(
        "inspect.html"
    ),
    samples: Annotated[int, typer.Option(min=1, help="How many, evenly spread over the dataset.")] = 50,
    key: Annotated[list[str] | None, typer.Option(help="Show the sample with this key instead; repeatable.")] = None,
    pack_length: Annotated[int, typer.Option(min=1, help="Tokens of a pack.")] = 8192,
    segment_multiple: Annotated[int, typer.Option(min=1, help="Each sample is padded to a multiple of this.")] = 1,
    text: Annotated[bool, typer.Option("--text", help="Print the samples here instead of writing a page.")] = False,
    min_pixels: MinPixels = None,
    max_pixels: MaxPixels = None,
    config: EncoderConfig = None,
    index_dir: IndexDir = None,
    split: Split = None,
    aux: Aux = None,
    as_json: AsJson = False,
) -> None:
    """Show samples as the model sees them: image grids, what is trained on, positions, packs, and what is skipped.

    Exit status: 0 done, 2 it could not be done.
    """
    # Here, so that --help answers without loading torch.
    from packloom.report.gallery import Choice, open_gallery  # noqa: PLC0415
    from packloom.report.page import write_page  # noqa: PLC0415
    from packloom.report.samples import load_encoder  # noqa: PLC0415

    if not text and (out.is_dir() or not out.parent.is_dir()):
        raise ConfigError(f"--out {out} is a folder, or in one that is not there: name a file such as inspect.html")
    spec = EncoderSpec(processor=processor, min_pixels=min_pixels, max_pixels=max_pixels, config=config)
    choice = Choice(
        num_samples=samples, keys=tuple(key or ()), pack_length=pack_length, segment_multiple=segment_multiple
    )
    gallery = open_gallery(data_spec(data, index_dir, split, aux), load_encoder(spec), choice)
    num_bytes = 0 if text else write_page(gallery, out)
    if as_json:
        typer.echo(json.dumps(as_dict(gallery) | {"page": None if text else str(out), "num_bytes": num_bytes}))
    else:
        console = Console(highlight=False)
        if text:
            _print_samples(gallery, console)
        _print(gallery, console, None if text else out, num_bytes)


def as_dict(gallery: Gallery) -> dict[str, Any]:
    """Plain data for ``--json``."""
    return {
        "samples": [
            {
                "key": sample.key,
                "place": place,
                "num_tokens": sample.num_tokens,
                "num_trained": int(sample.loss_mask.sum()),
                "media": [
                    {"name": item.media.name, "width": item.width, "height": item.height, "num_tokens": item.num_tokens}
                    for item in sample.media
                ],
            }
            for sample, place in zip(gallery.samples, gallery.places, strict=True)
        ],
        "packs": [[gallery.samples[place].key for place in pack.members] for pack in gallery.packs],
        "skipped": [asdict(item) for item in gallery.skipped],
    }


def _print_samples(gallery: Gallery, console: Console) -> None:
    from packloom.inspect import describe  # noqa: PLC0415
    from packloom.testing.colours import LEGEND, coloured  # noqa: PLC0415

    console.print(Text(LEGEND, style="dim"), soft_wrap=True)
    for sample in gallery.samples:
        console.print(Text.assemble("\n", (describe(sample), "bold"), "\n"), soft_wrap=True)
        console.print(coloured(gallery.encoder, sample), soft_wrap=True)


def _print(gallery: Gallery, console: Console, out: Path | None, num_bytes: int) -> None:
    from packloom.inspect import printable  # noqa: PLC0415

    for item in gallery.skipped:
        line = f"skipped {printable(item.key)} ({item.code}): {printable(item.reason)}"
        console.print(Text(line, style="yellow"), soft_wrap=True)
    of = "" if gallery.total is None else f" of {gallery.total:,}"
    seen = len(gallery.samples) + len(gallery.skipped)
    packs = f"{len(gallery.packs):,} packs of {gallery.choice.pack_length:,}"
    console.print(f"{seen:,}{of} samples, {len(gallery.skipped):,} skipped, {packs}", soft_wrap=True)
    if out is not None:
        console.print(Text(f"{out}: {num_bytes / 2**20:.1f} MiB, open it in a browser"), soft_wrap=True)
