"""The command-line arguments that several commands share go in; the names of a dataset and an encoder come out."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Annotated

import typer

from packloom.errors import ConfigError
from packloom.report.spec import DataSpec

#: A core count says little about a container's share of them.
MAX_DEFAULT_WORKERS = 8

Data = Annotated[
    list[str], typer.Argument(help="Folders of tar shards, tars or brace patterns; a blend.yaml; a Lance dataset.")
]
IndexedData = Annotated[list[str], typer.Argument(help="Indexed folders of tar shards, tars or brace patterns.")]
IndexDir = Annotated[str | None, typer.Option(help="Folder of the index, if not .packloom beside the shards.")]
Split = Annotated[str | None, typer.Option(help="Of a folder that Energon prepared; default: train.")]
Aux = Annotated[list[str] | None, typer.Option(help="ALIAS=PATH of a dataset that samples name media of; repeatable.")]
Workers = Annotated[int | None, typer.Option(min=0, help="Processes; default: one per CPU core, at most 8.")]
MinPixels = Annotated[int | None, typer.Option(min=1, help="Lower bound on an image's area, in pixels.")]
MaxPixels = Annotated[int | None, typer.Option(min=1, help="Upper bound on an image's area, in pixels.")]
EncoderConfig = Annotated[
    str | None,
    typer.Option("--config", help="YAML of a DataConfig: the encoder gets its sample settings, e.g. video.fps."),
]
AsJson = Annotated[bool, typer.Option("--json", help="One JSON object on stdout; progress on stderr.")]


def data_spec(paths: Sequence[str], index_dir: str | None, split: str | None, aux: Sequence[str] | None) -> DataSpec:
    """Raises ConfigError for an ``--aux`` that is not ALIAS=PATH."""
    return DataSpec(path=tuple(paths), index_dir=index_dir, split_part=split, aux=tuple(map(_pair, aux or ())))


def num_workers(stated: int | None) -> int:
    """The processes to use."""
    return min(MAX_DEFAULT_WORKERS, os.cpu_count() or 1) if stated is None else stated


def _pair(text: str) -> tuple[str, str]:
    alias, equals, path = text.partition("=")
    if not equals or not alias or not path:
        raise ConfigError(f"--aux {text!r} is not ALIAS=PATH, such as media=photos/")
    return alias, path
