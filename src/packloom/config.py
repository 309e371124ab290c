"""The frozen settings of a data pipeline, one dataclass per stage, and the YAML that fills them."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, TypedDict, TypeVar, get_args, get_type_hints

import yaml

from packloom.errors import ConfigError
from packloom.types import LabelShift, Layout

_T = TypeVar("_T")

LossOn = Literal["all_turns", "last_turn", "all_text"]
ThinkingPolicy = Literal["keep", "drop", "supervise"]
ControlTokenPolicy = Literal["refuse", "neutralise"]
TailPolicy = Literal["pad", "drop", "wrap"]


def _check_types(config: Any) -> None:
    """Hold each field to the plain types that its annotation admits; raises ConfigError."""
    for name, hint in get_type_hints(type(config)).items():
        value = getattr(config, name)
        if isinstance(hint, type) and dataclasses.is_dataclass(hint):
            _require(isinstance(value, hint), f"{name} must be a {hint.__name__}, got {value!r}")
        else:
            _convert(hint, value, name)


def _require(condition: bool, message: str) -> None:
    if not condition:
        raise ConfigError(message)


@dataclass(frozen=True, kw_only=True)
class SampleLimits:
    """Upper limits per sample; None means no limit. A sample over one is refused with the number and the limit."""

    max_images: int | None = None
    max_image_tokens: int | None = None
    max_pixels: int | None = 89_478_485  # of one image's header size, before decoding; Pillow refuses twice this anyway

    def __post_init__(self) -> None:
        _check_types(self)
        for name, value in dataclasses.asdict(self).items():
            _require(value is None or value > 0, f"limits.{name} must be positive or null, got {value}")


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
    limits: SampleLimits


def sample_config(settings: Mapping[str, Any]) -> SampleConfig:
    """A SampleConfig from keyword arguments; an unknown one is a ConfigError."""
    known = [item.name for item in dataclasses.fields(SampleConfig)]
    unknown = sorted(set(settings) - set(known))
    _require(not unknown, f"an encoder has no setting {', '.join(unknown)}; known: {', '.join(known)}")
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
    limits: SampleLimits = field(default_factory=SampleLimits)

    def __post_init__(self) -> None:
        _check_types(self)
        _require(self.max_length is None or self.max_length > 0, f"max_length must be positive, got {self.max_length}")
        _require(self.overlong in ("drop", "truncate"), f"overlong must be 'drop' or 'truncate', got {self.overlong!r}")
        for name, hint in (("loss_on", LossOn), ("thinking", ThinkingPolicy), ("control_tokens", ControlTokenPolicy)):
            _require(
                getattr(self, name) in get_args(hint),
                f"{name} must be one of {get_args(hint)}, got {getattr(self, name)!r}",
            )
        for name, value in (("min_pixels", self.min_pixels), ("max_pixels", self.max_pixels)):
            _require(value is None or value > 0, f"{name} must be positive, got {value}")
        if self.min_pixels is not None and self.max_pixels is not None:
            _require(
                self.min_pixels <= self.max_pixels,
                f"min_pixels {self.min_pixels} is above max_pixels {self.max_pixels}",
            )
        _require(
            self.overlong == "drop" or self.max_length is not None,
            "overlong='truncate' needs max_length: set the length to truncate to",
        )


@dataclass(frozen=True, kw_only=True)
class SourceConfig:
    """Which shards are read and in what order."""

    path: str | tuple[str, ...] = ()  # folder, tar, brace pattern, or a tuple of them
    index_dir: str | None = None  # where the index is, if not in .packloom beside the shards
    split_part: str | None = None  # of a folder that Energon prepared; None: train
    shuffle: bool = True
    shuffle_window: int = 1000  # samples that a lane (of an un-indexed dataset: a worker) shuffles among
    shuffle_block: int = 16  # samples that stay together on disk, and are read together; indexed datasets only
    seed: int = 0
    epochs: int | None = None  # None repeats for ever

    def __post_init__(self) -> None:
        _check_types(self)
        _require(bool(self.path), "source.path is empty: name a folder of shards, a tar file or a brace pattern")
        for name in ("shuffle_window", "shuffle_block"):
            _require(getattr(self, name) > 0, f"source.{name} must be positive, got {getattr(self, name)}")
        _require(self.epochs is None or self.epochs > 0, f"epochs must be positive or null, got {self.epochs}")


@dataclass(frozen=True, kw_only=True)
class PackingConfig:
    """How samples share a pack. Packing is on exactly when the loader's layout is ``"packed"``."""

    pack_length: int | None = None  # T's budget in tokens; None takes the encoder's max_length
    max_patches: int | None = None  # vision patches per pack
    open_packs: int = 16  # packs' worth of samples that may wait; 32 or more fill better where samples are long
    buffer_size: int = 64  # further samples that may wait, to choose from
    max_wait: int = 2000  # no sample waits for more than this many further samples
    segment_multiple: int = 1  # each segment is padded to a multiple of this (2·cp, cp·tp, ...)
    pad_to_length: bool = False  # every pack exactly pack_length long

    def __post_init__(self) -> None:
        _check_types(self)
        for name in ("pack_length", "max_patches", "open_packs", "max_wait", "segment_multiple"):
            value = getattr(self, name)
            _require(value is None or value > 0, f"packing.{name} must be positive, got {value}")
        _require(self.buffer_size >= 0, f"packing.buffer_size must not be negative, got {self.buffer_size}")
        if self.pack_length is not None:
            _require(
                self.pack_length % self.segment_multiple == 0,
                f"pack_length {self.pack_length} is not a multiple of segment_multiple {self.segment_multiple}",
            )


@dataclass(frozen=True, kw_only=True)
class LoaderConfig:
    """Batches, workers and what happens to bad samples."""

    layout: Layout = "packed"
    micro_batch_size: int = 1
    label_shift: LabelShift = "next_token"
    pad_to_multiple_of: int = 1  # padded layout: S is rounded up to a multiple of this
    num_workers: int = 0
    start_method: Literal["spawn", "fork", "forkserver"] | None = None  # None: torch's default
    prefetch_factor: int = 2
    persistent_workers: bool = False  # workers outlive a loop that is left early; a later loop goes on with them
    num_lanes: int = 96  # of an indexed dataset; dp_size times num_workers must divide it
    min_lane_samples: int = 1024  # a dataset with fewer samples per lane is cut into fewer lanes
    tail: TailPolicy = "pad"  # the end of a finite run: zero-loss rows, or further samples, or dropping what is left
    on_error: Literal["skip", "raise"] = "skip"
    quarantine: str | None = None  # JSON-lines file that names each skipped sample
    max_consecutive_errors: int = 100

    def __post_init__(self) -> None:
        _check_types(self)
        _require(self.layout in ("packed", "padded"), f"layout must be 'packed' or 'padded', got {self.layout!r}")
        _require(
            self.label_shift in ("next_token", "none"),
            f"label_shift must be 'next_token' or 'none', got {self.label_shift!r}",
        )
        _require(self.on_error in ("skip", "raise"), f"on_error must be 'skip' or 'raise', got {self.on_error!r}")
        _require(self.tail in get_args(TailPolicy), f"tail must be one of {get_args(TailPolicy)}, got {self.tail!r}")
        for name in ("micro_batch_size", "pad_to_multiple_of", "prefetch_factor", "max_consecutive_errors"):
            _require(getattr(self, name) > 0, f"loader.{name} must be positive, got {getattr(self, name)}")
        for name in ("num_lanes", "min_lane_samples"):
            _require(getattr(self, name) > 0, f"loader.{name} must be positive, got {getattr(self, name)}")
        _require(self.num_workers >= 0, f"loader.num_workers must not be negative, got {self.num_workers}")
        _require(
            self.start_method in (None, "spawn", "fork", "forkserver"),
            f"loader.start_method must be spawn, fork, forkserver or null, got {self.start_method!r}",
        )
        _require(
            self.layout == "padded" or self.micro_batch_size == 1,
            f"a packed batch is one row of shape [1, T]: micro_batch_size must be 1, got {self.micro_batch_size}"
            " (raise pack_length instead)",
        )


@dataclass(frozen=True, kw_only=True)
class DistributionConfig:
    """This rank's place among the data-parallel ranks; tensor-, pipeline- and context-parallel peers share one.

    None: that of the device mesh or process group that ``build_loader`` is given, or of the initialised process group.
    """

    dp_rank: int | None = None
    dp_size: int | None = None

    def __post_init__(self) -> None:
        _check_types(self)
        rank, size = self.dp_rank, self.dp_size
        _require((rank is None) == (size is None), f"dp_rank {rank} and dp_size {size} go together: state both or none")
        if rank is not None and size is not None:
            _require(size > 0, f"dp_size must be positive, got {size}")
            _require(0 <= rank < size, f"dp_rank {rank} is not in 0..{size - 1}")


@dataclass(frozen=True, kw_only=True)
class DataConfig:
    """A whole data pipeline: one frozen dataclass per stage."""

    source: SourceConfig
    sample: SampleConfig = field(default_factory=SampleConfig)
    packing: PackingConfig = field(default_factory=PackingConfig)
    loader: LoaderConfig = field(default_factory=LoaderConfig)
    distribution: DistributionConfig = field(default_factory=DistributionConfig)

    def __post_init__(self) -> None:
        _check_types(self)
        length, pack = self.sample.max_length, self.packing.pack_length
        _require(
            self.loader.layout != "packed" or length is None or pack is None or length <= pack,
            f"sample.max_length {length} is above packing.pack_length {pack}: such a sample fits no pack",
        )

    @classmethod
    def from_yaml(cls, path: str | Path) -> DataConfig:
        """Read a YAML file with one mapping per stage; an unknown key or a wrong type is a ConfigError."""
        try:
            data = yaml.safe_load(Path(path).read_text(encoding="utf-8"))
        except OSError as error:
            raise ConfigError(f"cannot read {path}: {error.strerror}") from error
        except yaml.YAMLError as error:
            raise ConfigError(f"{path} is not plain YAML: {error}") from error
        if not isinstance(data, Mapping):
            raise ConfigError(f"{path} must hold a mapping with the stages source, sample, packing, loader")
        return from_mapping(cls, data, where=str(path))


def from_mapping(kind: type[_T], data: Mapping[str, Any], *, where: str) -> _T:
    """Build the config dataclass ``kind`` from plain data; nested stages are built in the same way."""
    hints = get_type_hints(kind)
    unknown = sorted(set(map(str, data)) - set(hints))
    _require(not unknown, f"{where}: unknown key(s) {', '.join(unknown)}; known: {', '.join(hints)}")
    missing = [f.name for f in dataclasses.fields(kind) if _is_required(f) and f.name not in data]  # type: ignore[arg-type]
    _require(not missing, f"{where}: missing {', '.join(missing)}")
    return kind(**{name: _convert(hints[name], value, f"{where}: {name}") for name, value in data.items()})


def _is_required(item: dataclasses.Field[Any]) -> bool:
    return item.default is dataclasses.MISSING and item.default_factory is dataclasses.MISSING


def _convert(hint: Any, value: Any, where: str) -> Any:
    if dataclasses.is_dataclass(hint):
        _require(isinstance(value, Mapping), f"{where} must be a mapping, got {value!r}")
        return from_mapping(hint, value, where=where)  # type: ignore[arg-type]
    if isinstance(value, list):
        value = tuple(value)
    allowed = tuple(_plain_types(hint))
    matches = type(value) in allowed or (float in allowed and type(value) is int)
    _require(matches, f"{where} must be {' or '.join(t.__name__ for t in allowed)}, got {value!r}")
    return value


def _plain_types(hint: Any) -> set[type]:
    """The plain types that a field's annotation admits: ``int | None`` → {int, NoneType}."""
    arguments = get_args(hint)
    if not arguments:
        return {hint}
    if getattr(hint, "__origin__", None) is Literal:
        return {type(choice) for choice in arguments}
    if getattr(hint, "__origin__", None) is tuple:
        return {tuple}
    return set().union(*map(_plain_types, arguments))
