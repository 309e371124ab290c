"""The keywords of build_loader: the fields of DataConfig's stages, in one flat mapping."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal, TypedDict

from packloom.config import TailPolicy
from packloom.types import LabelShift, Layout


class LoaderSettings(TypedDict, total=False):
    """The fields of DataConfig's stages as keyword arguments; their meaning and defaults are there."""

    # SourceConfig
    index_dir: str | None
    split_part: str | None
    aux: Mapping[str, str]
    shuffle: bool
    shuffle_window: int
    shuffle_block: int
    seed: int
    epochs: int | None
    plan: str | None
    # PackingConfig
    pack_length: int | None
    max_patches: int | None
    open_packs: int
    buffer_size: int
    max_wait: int
    segment_multiple: int
    pad_to_length: bool
    balance: Literal["off", "cost"]
    balance_window: int
    cost_linear: float
    cost_attention: float
    cost_vision: float
    # LoaderConfig
    layout: Layout
    micro_batch_size: int
    label_shift: LabelShift
    expand_pixels: bool
    pad_to_multiple_of: int
    fp8: Literal["fp8", "mxfp8"] | None
    dummy_media: Literal["per_batch", "off"]
    num_workers: int
    start_method: Literal["spawn", "fork", "forkserver"] | None
    prefetch_factor: int
    persistent_workers: bool
    num_lanes: int
    min_lane_samples: int
    tail: TailPolicy
    on_error: Literal["skip", "raise"]
    quarantine: str | None
    max_consecutive_errors: int
    max_error_fraction: float | None
    min_error_samples: int
    # DistributionConfig
    dp_rank: int | None
    dp_size: int | None
    cp_size: int
    tp_size: int
    sequence_parallel: bool
