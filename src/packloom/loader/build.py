"""A dataset path or a DataConfig, an encoder and keywords go in, a checked Loader comes out."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import fields, replace
from typing import Any, Literal, TypedDict

from typing_extensions import Unpack

from packloom.config import DataConfig, SampleConfig, SourceConfig
from packloom.datasets.shards import expand_paths
from packloom.errors import ConfigError
from packloom.loader.loader import Loader
from packloom.loader.pipeline import Encoder, Recipe
from packloom.packing import PackFunction
from packloom.task_encoders import TaskEncoder
from packloom.types import LabelShift, Layout


class LoaderSettings(TypedDict, total=False):
    """The fields of DataConfig's stages as keyword arguments; their meaning and defaults are there."""

    # SourceConfig
    shuffle: bool
    shuffle_window: int
    seed: int
    epochs: int | None
    # PackingConfig
    pack_length: int | None
    max_patches: int | None
    open_packs: int
    buffer_size: int
    max_wait: int
    segment_multiple: int
    pad_to_length: bool
    # LoaderConfig
    layout: Layout
    micro_batch_size: int
    label_shift: LabelShift
    pad_to_multiple_of: int
    num_workers: int
    start_method: Literal["spawn", "fork", "forkserver"] | None
    prefetch_factor: int
    on_error: Literal["skip", "raise"]
    quarantine: str | None
    max_consecutive_errors: int
    # DistributionConfig
    dp_rank: int
    dp_size: int


def build_loader(
    source: str | os.PathLike[str] | Sequence[str | os.PathLike[str]] | DataConfig,
    encoder: Encoder,
    *,
    packer: PackFunction | None = None,
    **settings: Unpack[LoaderSettings],
) -> Loader:
    """A loader over ``source``: a folder of shards, a tar file, a brace pattern, a list of these, or a DataConfig.

    ``settings`` are the fields of DataConfig's stages; beside a DataConfig they override it. ``packer`` replaces the
    built-in packing: a function from the costs of a window of samples to groups of positions (see packloom.packing).
    Without ``pack_length`` a pack holds the encoder's ``max_length``.

    With ``epochs=1`` every good sample arrives exactly once over all ranks and workers; ``epochs=None`` never ends.
    Packed batches are [1, T], T at most ``pack_length``; padded ones hold ``micro_batch_size`` rows, but for the last.
    A sample whose media turn out bad is replaced by the next one in a padded batch; a pack goes out without it.

    Raises ConfigError for settings that cannot work together, ShardError for a path without shards.
    """
    base = source if isinstance(source, DataConfig) else DataConfig(source=SourceConfig(path=_plain_path(source)))
    config = _complete(_override(base, dict(settings)), encoder)
    shards = expand_paths(config.source.path)
    return Loader(Recipe(config=config, shards=tuple(shards), encoder=encoder, pack_function=packer))


def _plain_path(source: str | os.PathLike[str] | Sequence[str | os.PathLike[str]]) -> str | tuple[str, ...]:
    if isinstance(source, (str, os.PathLike)):
        return os.fspath(source)
    return tuple(os.fspath(path) for path in source)


def _override(config: DataConfig, settings: dict[str, Any]) -> DataConfig:
    """The config with each keyword put into the stage that has a field of that name."""
    stages = {name: getattr(config, name) for name in ("source", "packing", "loader", "distribution")}
    changed = {}
    for name, stage in stages.items():
        own = {field.name: settings.pop(field.name) for field in fields(stage) if field.name in settings}
        changed[name] = replace(stage, **own)
    if settings:
        known = ", ".join(LoaderSettings.__annotations__)
        raise ConfigError(f"build_loader has no setting {', '.join(settings)}; known: {known}")
    return replace(config, **changed)


def _complete(config: DataConfig, encoder: Encoder) -> DataConfig:
    """The config with the pack length filled in, checked against the encoder."""
    _check_sample_settings(config.sample, encoder)
    longest = encoder.max_length
    if config.loader.layout == "padded":
        return config
    length = config.packing.pack_length or longest
    if length is None:
        raise ConfigError("packing needs a length: pass pack_length, or build the encoder with max_length")
    if longest is not None and length < longest:
        raise ConfigError(
            f"pack_length {length} is below the encoder's max_length {longest}: samples between the two fit no pack."
            " Raise pack_length or lower max_length"
        )
    if length % config.loader.pad_to_multiple_of:
        raise ConfigError(
            f"pack_length {length} is not a multiple of pad_to_multiple_of {config.loader.pad_to_multiple_of}"
        )
    return replace(config, packing=replace(config.packing, pack_length=length))


def _check_sample_settings(stated: SampleConfig, encoder: Encoder) -> None:
    """Refuse sample settings that were stated here, but not given to the encoder, which alone obeys them."""
    if stated == SampleConfig():
        return
    hint = "build it with SampleConfig's values, or leave the sample settings out of this config"
    if stated.max_length is not None and stated.max_length != encoder.max_length:
        raise ConfigError(
            f"sample.max_length is {stated.max_length}, but the encoder's is {encoder.max_length}: {hint}"
        )
    if isinstance(encoder, TaskEncoder) and stated != encoder.config:
        names = [
            item.name for item in fields(stated) if getattr(stated, item.name) != getattr(encoder.config, item.name)
        ]
        raise ConfigError(f"the encoder was built with other sample settings ({', '.join(names)}): {hint}")
