"""The names of a dataset and of an encoder: small, hashable values that each process opens or loads for itself."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class DataSpec:
    """A dataset by name; the fields are those of SourceConfig."""

    path: tuple[str, ...]
    index_dir: str | None = None
    split_part: str | None = None
    aux: tuple[tuple[str, str], ...] = ()  # alias, path


@dataclass(frozen=True, kw_only=True)
class EncoderSpec:
    """An encoder by the name of its processor, with the settings that decide on lengths."""

    processor: str
    max_length: int | None = None
    min_pixels: int | None = None
    max_pixels: int | None = None
    config: str | None = None  # YAML of a DataConfig, whose sample settings the encoder gets
