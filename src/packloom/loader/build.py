"""A dataset path or a DataConfig, an encoder and keywords go in, a checked Loader comes out."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import fields, replace
from typing import Any

from typing_extensions import Unpack

from packloom.blend import Blend
from packloom.config import DataConfig, DistributionConfig, SampleConfig, SourceConfig
from packloom.datasets.aux_media import AuxLibrary
from packloom.datasets.shards import expand_paths
from packloom.errors import ConfigError
from packloom.loader.balance_engine import BalancedEngine
from packloom.loader.distribution import Place, find_place
from packloom.loader.feed import LaneFeed
from packloom.loader.feeds import make_feed
from packloom.loader.lance_feed import spawn_for_lance
from packloom.loader.lane_engine import LaneEngine
from packloom.loader.lanes import LaneGrid, check_cluster
from packloom.loader.loader import Engine, Loader
from packloom.loader.pipeline import Recipe
from packloom.loader.plan_check import open_plan
from packloom.loader.plan_feed import PlanFeed
from packloom.loader.settings import LoaderSettings
from packloom.loader.stages import Encoder
from packloom.loader.stream import StreamEngine
from packloom.loader.worker import Plan
from packloom.packing import PackerFactory, PackFunction
from packloom.task_encoders import TaskEncoder

#: What a loader reads: a folder of shards, a tar file, a brace pattern, the YAML file of a blend, a list of shards and
#: folders, a Blend, or a whole DataConfig.
Source = str | os.PathLike[str] | Sequence[str | os.PathLike[str]] | Blend | DataConfig


def build_loader(
    source: Source,
    encoder: Encoder,
    *,
    packer: PackFunction | PackerFactory | None = None,
    device_mesh: Any | None = None,
    dp_dims: Sequence[str] = ("dp",),
    process_group: Any | None = None,
    **settings: Unpack[LoaderSettings],
) -> Loader:
    """A loader over ``source``: a folder of shards, a tar file, a brace pattern, a list of these, or a DataConfig; or
    several datasets at once: a ``Blend``, or the YAML file of one (see docs/blends.md).

    ``settings`` are the fields of DataConfig's stages; beside a DataConfig they override it. ``packer`` replaces the
    built-in packing: a function from the costs of a window of samples to groups of positions, or a PackerFactory (see
    packloom.packing). ``aux={"media": path}`` opens another indexed dataset, of which samples may name media:
    ``media/000123.0.jpg`` is part ``0.jpg`` of its sample ``000123`` (see docs/resume.md).
    Without ``pack_length`` a pack holds the encoder's ``max_length``. Packed batches are [1, T], T at most
    ``pack_length``; padded ones hold ``micro_batch_size`` rows.

    **Ranks.** ``dp_rank`` and ``dp_size``, or a ``device_mesh`` with the names ``dp_dims`` of its data-parallel
    dimensions, or the ``process_group`` of the data-parallel ranks. Without any of them every rank of the initialised
    default process group reads data of its own; without a group there is one rank. Tensor-, pipeline- and
    context-parallel peers must share a ``dp_rank``: they get identical data.

    **Indexed datasets** (``write_shards`` and ``packloom index`` make the index; folders that Energon prepared have
    one) are cut into lanes, so that the sequence of batches depends on neither ranks nor workers, and resumes exactly
    on another number of them (``Loader.state_dict``). ``dp_size`` times ``num_workers`` must divide ``num_lanes``.

    With ``epochs=1`` every good sample arrives exactly once over all ranks. All ranks get the same number of batches.
    By ``tail="pad"``, what lacks is made up with rows that train nothing (one token each, no label, no key, not counted
    as samples; a whole batch of them only where there are several ranks: weigh losses by ``num_loss_tokens``);
    ``"wrap"`` goes on with samples of the next epoch; ``"drop"`` ends before the first round in which any lane
    lacks a batch. To know the end, the ranks ask each other once per round, in the thread that iterates; with several
    ranks, but no process group to ask through, each encodes the lanes of the others to count them, which costs as much
    as encoding (not decoding) the whole dataset. Endless runs (``epochs=None``) need neither.

    A sample whose media turn out bad leaves its pack; in a padded batch, and where a pack loses all, the next sample of
    the dataset takes its place (endless) or a row that trains nothing (finite).

    **Plans.** ``plan`` names a file of ``make_plan``, or ``packloom plan``, that says for whole epochs which samples
    share a pack: see docs/plan.md. Any numbers of ranks and workers fit it.

    **Lance datasets** are read in place, in their newest version or in that of ``data.lance?version=7`` (see
    docs/convert.md); workers are spawned.

    **Un-indexed shards** are read as a stream: no exact resume, and ranks may get unequal numbers of batches.

    Raises ConfigError for settings that cannot work together, ShardError for a path without shards or an index that
    does not fit them.
    """
    config = complete(override(base_config(source), dict(settings)), encoder)
    place = find_place(config.distribution, device_mesh=device_mesh, dp_dims=dp_dims, process_group=process_group)
    config = replace(config, distribution=DistributionConfig(dp_rank=place.dp_rank, dp_size=place.dp_size))
    config = spawn_for_lance(config)
    library = AuxLibrary()
    feed = make_feed(config, library)
    if config.packing.balance != "off" and (feed is None or config.loader.tail == "wrap"):
        raise ConfigError("balance='cost' needs an indexed dataset (run `packloom index`) and tail='pad' or 'drop'")
    if config.source.plan is not None:
        feed = open_plan(config, feed, encoder, library, has_packer=packer is not None)
    if feed is not None:
        return Loader(_lane_engine(feed, config, encoder, packer, place, library))
    recipe = Recipe(
        config=config,
        shards=tuple(expand_paths(config.source.path)),
        encoder=encoder,
        dp_rank=place.dp_rank,
        dp_size=place.dp_size,
        pack_function=packer,
        library=library,
        aux=library.shelf(config.source.aux) if config.source.aux else None,
    )
    engine: Engine = StreamEngine(recipe)
    return Loader(engine)


def _lane_engine(
    feed: LaneFeed,
    config: DataConfig,
    encoder: Encoder,
    packer: PackFunction | PackerFactory | None,
    place: Place,
    library: AuxLibrary,
) -> LaneEngine:
    settings = config.loader
    planned = feed if isinstance(feed, PlanFeed) else None
    is_balanced = config.packing.balance != "off"
    if planned is None and not is_balanced:  # else any number of them can share the lanes
        check_cluster(settings.num_lanes, dp_size=place.dp_size, num_workers=settings.num_workers)
    grid = LaneGrid(
        num_lanes=feed.num_lanes,
        dp_rank=place.dp_rank,
        dp_size=place.dp_size,
        num_workers=max(1, settings.num_workers),
    )
    plan = Plan(
        config=config, feed=feed, encoder=encoder, grid=grid, pack_function=packer, aux=library, planned=planned
    )
    return BalancedEngine(plan, place) if is_balanced else LaneEngine(plan, place)


def base_config(source: Source) -> DataConfig:
    """The config of a source, with defaults for the rest."""
    if isinstance(source, DataConfig):
        return source
    named = SourceConfig(blend=source) if isinstance(source, Blend) else SourceConfig(path=_plain_path(source))
    return DataConfig(source=named)


def _plain_path(source: str | os.PathLike[str] | Sequence[str | os.PathLike[str]]) -> str | tuple[str, ...]:
    if isinstance(source, (str, os.PathLike)):
        return os.fspath(source)
    return tuple(os.fspath(path) for path in source)


def override(config: DataConfig, settings: dict[str, Any]) -> DataConfig:
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


def complete(config: DataConfig, encoder: Encoder) -> DataConfig:
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
