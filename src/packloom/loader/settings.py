"""The keywords of build_loader: the fields of DataConfig's stages, in one flat mapping."""

from __future__ import annotations

from typing import Literal, TypedDict

from packloom.config import TailPolicy
from packloom.types import LabelShift, Layout


class LoaderSettings(TypedDict, total=False):
    """The fields of DataConfig's stages as keyword arguments; their meaning and defaults are there."""

    # SourceConfig
    index_dir: str | None
    split_part: str | None
    shuffle: bool
    shuffle_window: int
    shuffle_block: int
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
    persistent_workers: bool
    num_lanes: int
    min_lane_samples: int
    tail: TailPolicy
    on_error: Literal["skip", "raise"]
    quarantine: str | None
    max_consecutive_errors: int
    # DistributionConfig
    dp_rank: int | None
    dp_size: int | None
