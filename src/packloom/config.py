"""The frozen settings of a data pipeline, one dataclass per stage, and the YAML that fills them."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, TypedDict, get_args

import yaml

from packloom.alignment import FP8_MULTIPLES, segment_multiple
from packloom.blend import Blend
from packloom.config_audio import AudioConfig
from packloom.config_fields import check_types, from_mapping, require
from packloom.config_packing import PackingConfig as PackingConfig
from packloom.config_video import VideoConfig
from packloom.errors import ConfigError
from packloom.types import LabelShift, Layout

LossOn = Literal["all_turns", "last_turn", "all_text"]
ThinkingPolicy = Literal["keep", "drop", "supervise"]
ControlTokenPolicy = Literal["refuse", "neutralise"]
TailPolicy = Literal["pad", "drop", "wrap"]
MediaPath = Literal["fast", "exact_hf"]
PixelBackend = Literal["auto", "torchvision", "pil"]
_COUNTS = ("max_images", "max_videos", "max_audios")  # limits that may be 0


@dataclass(frozen=True, kw_only=True)
class SampleLimits:
    """Upper limits per sample; None: no limit, 0 media: none of the kind. A sample over one is refused with both."""

    max_images: int | None = None
    max_image_tokens: int | None = None
    max_pixels: int | None = 89_478_485  # of one image's header size, before decoding; Pillow refuses twice this anyway
    max_videos: int | None = None
    max_video_tokens: int | None = None
    max_video_seconds: float | None = None  # of one clip, before frames are chosen
    max_audios: int | None = None
    max_audio_tokens: int | None = None
    max_audio_seconds: float | None = None  # of one file, before it is cut

    def __post_init__(self) -> None:
        check_types(self)
        for name, value in dataclasses.asdict(self).items():
            fits = value is None or value > 0 or (value == 0 and name in _COUNTS)
            require(fits, f"limits.{name} must be positive or null, got {value}")


class SampleSettings(TypedDict, total=False):
    """The fields of SampleConfig as keyword arguments."""

    max_length: int | None
    overlong: Literal["drop", "truncate"]
    min_pixels: int | None
    max_pixels: int | None
    loss_on: LossOn
    thinking: ThinkingPolicy
    control_tokens: ControlTokenPolicy
    train_terminator: bool
    media: MediaPath
    pixels: PixelBackend
    video: VideoConfig
    audio: AudioConfig
    limits: SampleLimits


def sample_config(settings: Mapping[str, Any]) -> SampleConfig:
    """A SampleConfig from keyword arguments; an unknown one is a ConfigError."""
    known = [item.name for item in dataclasses.fields(SampleConfig)]
    unknown = sorted(set(settings) - set(known))
    require(not unknown, f"an encoder has no setting {', '.join(unknown)}; known: {', '.join(known)}")
    return SampleConfig(**settings)


@dataclass(frozen=True, kw_only=True)
class SampleConfig:
    """What an encoder does with one sample."""

    max_length: int | None = None  # tokens, media included
    overlong: Literal["drop", "truncate"] = "drop"
    min_pixels: int | None = None  # None keeps the processor's own bound
    max_pixels: int | None = None
    loss_on: LossOn = "all_turns"  # "last_turn": the last assistant turn; "all_text": every text token, never media
    thinking: ThinkingPolicy = "supervise"  # reasoning: trained on, kept as context, or dropped before rendering
    control_tokens: ControlTokenPolicy = "refuse"  # texts that spell control tokens: refused, or read as plain text
    train_terminator: bool = True  # False leaves the stop token of each turn out of the loss
    media: MediaPath = "fast"  # images as bytes where that is proved to equal the HF processor, or its own floats
    pixels: PixelBackend = "auto"  # whose resizing: that of the processor as it was loaded, or of this backend
    video: VideoConfig = field(default_factory=VideoConfig)
    audio: AudioConfig = field(default_factory=AudioConfig)
    limits: SampleLimits = field(default_factory=SampleLimits)

    def __post_init__(self) -> None:
        check_types(self)
        require(self.max_length is None or self.max_length > 0, f"max_length must be positive, got {self.max_length}")
        require(self.overlong in ("drop", "truncate"), f"overlong must be 'drop' or 'truncate', got {self.overlong!r}")
        for name, hint in (
            ("loss_on", LossOn),
            ("thinking", ThinkingPolicy),
            ("control_tokens", ControlTokenPolicy),
            ("media", MediaPath),
            ("pixels", PixelBackend),
        ):
            require(
                getattr(self, name) in get_args(hint),
                f"{name} must be one of {get_args(hint)}, got {getattr(self, name)!r}",
            )
        for name, value in (("min_pixels", self.min_pixels), ("max_pixels", self.max_pixels)):
            require(value is None or value > 0, f"{name} must be positive, got {value}")
        low, high = self.min_pixels, self.max_pixels
        require(low is None or high is None or low <= high, f"min_pixels {low} is above max_pixels {high}")
        require(
            self.overlong == "drop" or self.max_length is not None,
            "overlong='truncate' needs max_length: set the length to truncate to",
        )


@dataclass(frozen=True, kw_only=True)
class SourceConfig:
    """Which shards are read and in what order."""

    path: str | tuple[str, ...] = ()  # folder, tar, brace pattern, or a tuple of them; or the YAML file of a blend
    blend: Blend | None = None  # instead of a path
    index_dir: str | None = None  # where the index is, if not in .packloom beside the shards
    split_part: str | None = None  # of a folder that Energon prepared; None: train
    aux: Mapping[str, str] = field(default_factory=dict)  # alias → indexed dataset that samples name media of
    shuffle: bool = True
    shuffle_window: int = 1000  # samples that a lane (of an un-indexed dataset: a worker) shuffles among
    shuffle_block: int = 16  # samples that stay together on disk, and are read together; indexed datasets only
    seed: int = 0
    epochs: int | None = None  # None repeats for ever
    plan: str | None = None  # file of ``packloom plan``, which then says what shares a pack; see docs/plan.md

    def __post_init__(self) -> None:
        check_types(self)
        require(
            bool(self.path) != (self.blend is not None),
            "source.path is empty: name a folder of shards, a tar file, a brace pattern, the YAML file of a blend (or"
            " give a Blend, alone)",
        )
        for name in ("shuffle_window", "shuffle_block"):
            require(getattr(self, name) > 0, f"source.{name} must be positive, got {getattr(self, name)}")
        require(self.epochs is None or self.epochs > 0, f"epochs must be positive or null, got {self.epochs}")


@dataclass(frozen=True, kw_only=True)
class LoaderConfig:
    """Batches, workers and what happens to bad samples."""

    layout: Layout = "packed"
    micro_batch_size: int = 1
    label_shift: LabelShift = "next_token"
    expand_pixels: bool = False  # float pixels in every batch; else bytes, which route and hf_model_inputs expand
    pad_to_multiple_of: int = 1  # S, or T, is rounded up to a multiple of this
    fp8: Literal["fp8", "mxfp8"] | None = None  # and of 16, or 32, for kernels of this precision
    dummy_media: Literal["per_batch", "off"] = "off"  # one for each batch without media, inside the pack's length
    num_workers: int = 0
    start_method: Literal["spawn", "fork", "forkserver"] | None = None  # None: torch's default
    prefetch_factor: int = 2
    persistent_workers: bool = False  # workers outlive a loop that is left early; a later loop goes on with them
    num_lanes: int = 96  # of an indexed dataset; dp_size times num_workers must divide it
    min_lane_samples: int = 1024  # a dataset with fewer samples per lane is cut into fewer lanes
    tail: TailPolicy = "pad"  # the end of a finite run: zero-loss rows, or further samples, or dropping what is left
    on_error: Literal["skip", "raise"] = "skip"
    quarantine: str | None = None  # JSON-lines file that names each skipped sample
    max_consecutive_errors: int = 100  # samples of a worker that fail in one stage, one after the other: the run ends
    max_error_fraction: float | None = 0.5  # a larger share of a worker's samples lost ends the run too; null: never
    min_error_samples: int = 1000  # of which a stage must have seen so many first

    def __post_init__(self) -> None:
        check_types(self)
        require(self.layout in ("packed", "padded"), f"layout must be 'packed' or 'padded', got {self.layout!r}")
        require(
            self.label_shift in ("next_token", "none"),
            f"label_shift must be 'next_token' or 'none', got {self.label_shift!r}",
        )
        require(self.on_error in ("skip", "raise"), f"on_error must be 'skip' or 'raise', got {self.on_error!r}")
        require(self.tail in get_args(TailPolicy), f"tail must be one of {get_args(TailPolicy)}, got {self.tail!r}")
        for name in (
            "micro_batch_size",
            "pad_to_multiple_of",
            "prefetch_factor",
            "max_consecutive_errors",
            "min_error_samples",
        ):
            require(getattr(self, name) > 0, f"loader.{name} must be positive, got {getattr(self, name)}")
        require(
            self.max_error_fraction is None or 0 <= self.max_error_fraction <= 1,
            f"loader.max_error_fraction must be in 0..1 or null, got {self.max_error_fraction}",
        )
        for name in ("num_lanes", "min_lane_samples"):
            require(getattr(self, name) > 0, f"loader.{name} must be positive, got {getattr(self, name)}")
        require(
            self.dummy_media in ("per_batch", "off"),
            f"loader.dummy_media must be per_batch or off, got {self.dummy_media!r}",
        )
        require(self.fp8 in (None, *FP8_MULTIPLES), f"loader.fp8 must be fp8, mxfp8 or null, got {self.fp8!r}")
        require(self.num_workers >= 0, f"loader.num_workers must not be negative, got {self.num_workers}")
        require(
            self.start_method in (None, "spawn", "fork", "forkserver"),
            f"loader.start_method must be spawn, fork, forkserver or null, got {self.start_method!r}",
        )
        require(
            self.layout == "padded" or self.micro_batch_size == 1,
            f"a packed batch is one row of shape [1, T]: micro_batch_size must be 1, got {self.micro_batch_size}"
            " (raise pack_length instead)",
        )


@dataclass(frozen=True, kw_only=True)
class DistributionConfig:
    """This rank's place among the data-parallel ranks; tensor-, pipeline- and context-parallel peers share one.

    None: that of the device mesh or process group that ``build_loader`` is given, or of the initialised process group.
    The sizes of the other dimensions say what lengths must be multiples of: 2·cp, and cp·tp with sequence parallelism.
    """

    dp_rank: int | None = None
    dp_size: int | None = None
    cp_size: int = 1  # context-parallel ranks, which share the tokens of a batch
    tp_size: int = 1  # tensor-parallel ranks; only sequence parallelism cuts tokens among them
    sequence_parallel: bool = False

    def __post_init__(self) -> None:
        check_types(self)
        rank, size = self.dp_rank, self.dp_size
        require((rank is None) == (size is None), f"dp_rank {rank} and dp_size {size} go together: state both or none")
        if rank is not None and size is not None:
            require(size > 0, f"dp_size must be positive, got {size}")
            require(0 <= rank < size, f"dp_rank {rank} is not in 0..{size - 1}")
        for name in ("cp_size", "tp_size"):
            require(getattr(self, name) > 0, f"{name} must be positive, got {getattr(self, name)}")

    @property
    def multiple(self) -> int:
        """What each segment of a pack, or S, must be a multiple of."""
        return segment_multiple(cp=self.cp_size, tp=self.tp_size, sequence_parallel=self.sequence_parallel)


@dataclass(frozen=True, kw_only=True)
class DataConfig:
    """A whole data pipeline: one frozen dataclass per stage.

    ``packing.segment_multiple`` and ``loader.pad_to_multiple_of`` become multiples of what the parallel dimensions and
    FP8 ask for, so that no batch is of a length that the model refuses.
    """

    source: SourceConfig
    sample: SampleConfig = field(default_factory=SampleConfig)
    packing: PackingConfig = field(default_factory=PackingConfig)
    loader: LoaderConfig = field(default_factory=LoaderConfig)
    distribution: DistributionConfig = field(default_factory=DistributionConfig)

    def __post_init__(self) -> None:
        check_types(self)
        length, pack = self.sample.max_length, self.packing.pack_length
        require(
            self.loader.layout != "packed" or length is None or pack is None or length <= pack,
            f"sample.max_length {length} is above packing.pack_length {pack}: such a sample fits no pack",
        )
        require(
            self.packing.balance == "off" or self.loader.layout == "packed",
            "balance='cost' is for packs: it needs layout='packed'",
        )
        self._align()

    def _align(self) -> None:
        """Raise the two multiples; a pack_length that is none of them is refused."""
        place, pack = self.distribution, self.packing.pack_length
        segments = math.lcm(self.packing.segment_multiple, place.multiple)
        total = math.lcm(self.loader.pad_to_multiple_of, FP8_MULTIPLES[self.loader.fp8] if self.loader.fp8 else 1)
        if self.loader.layout == "packed" and pack is not None:
            wanted = f"cp_size={place.cp_size}, tp_size={place.tp_size}, fp8={self.loader.fp8}"
            for name, multiple in (("segment_multiple", segments), ("pad_to_multiple_of", total)):
                require(
                    pack % multiple == 0,
                    f"pack_length {pack} is not a multiple of {name} {multiple} (with {wanted}): use"
                    f" {pack // multiple * multiple or multiple} or {(pack // multiple + 1) * multiple}",
                )
        # the dataclass is frozen for its users; what it derives is set while it is made
        object.__setattr__(self, "packing", dataclasses.replace(self.packing, segment_multiple=segments))
        object.__setattr__(self, "loader", dataclasses.replace(self.loader, pad_to_multiple_of=total))

    @classmethod
    def from_yaml(cls, path: str | Path) -> DataConfig:
        """Read a YAML file with one mapping per stage; an unknown key or a wrong type is a ConfigError."""
        try:
            data = yaml.safe_load(Path(path).read_text(encoding="utf-8"))
        except OSError as error:
            raise ConfigError(f"cannot read {path}: {error.strerror}") from error
        except (yaml.YAMLError, UnicodeDecodeError) as error:
            raise ConfigError(f"{path} is not plain YAML: {error}") from error
        if not isinstance(data, Mapping):
            raise ConfigError(f"{path} must hold a mapping with the stages source, sample, packing, loader")
        return from_mapping(cls, data, where=str(path))
