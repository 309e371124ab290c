"""Ranks stated, a device mesh or a process group go in; this rank's place, and a vote among all ranks, come out."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist

from packloom.config import DistributionConfig
from packloom.errors import ConfigError

logger = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class Place:
    """This rank among the data-parallel ranks. Over ``groups``, one after the other, all of them are reached."""

    dp_rank: int = 0
    dp_size: int = 1
    groups: tuple[Any, ...] = ()

    @property
    def can_vote(self) -> bool:
        """Whether the ranks can talk to each other."""
        return bool(self.groups)

    def vote(self, own: bool, *, unanimous: bool) -> bool:
        """Whether all ranks say yes, or (not ``unanimous``) any does. All ranks must call it together."""
        for group in self.groups:
            answer = torch.tensor([int(own)], dtype=torch.int32, device=_device(group))
            dist.all_reduce(answer, op=dist.ReduceOp.MIN if unanimous else dist.ReduceOp.MAX, group=group)
            own = bool(answer.item())
        return own


def find_place(
    config: DistributionConfig,
    *,
    device_mesh: Any | None = None,
    dp_dims: Sequence[str] = ("dp",),
    process_group: Any | None = None,
) -> Place:
    """This rank's place among the data-parallel ranks. What is looked at, in this order:

    1. ``device_mesh``: a ``torch.distributed.DeviceMesh``; ``dp_dims`` names the dimensions over which data differ,
       the outermost first, e.g. ``("dp_replicate", "dp_shard")``.
    2. ``process_group``: the group of the data-parallel ranks.
    3. ``dp_rank`` and ``dp_size`` of the config.
    4. The initialised default process group, every rank of which then reads data of its own. Where tensor, pipeline or
       context parallelism is in use that is wrong: use one of the others.
    5. One rank.

    Raises ConfigError for sources that contradict one another and for unknown dimensions.
    """
    if device_mesh is not None and process_group is not None:
        raise ConfigError("device_mesh and process_group were both given: give the one that tells the dp ranks apart")
    stated = None if config.dp_rank is None or config.dp_size is None else (config.dp_rank, config.dp_size)
    if device_mesh is not None:
        return _checked(_place_in_mesh(device_mesh, tuple(dp_dims)), stated, "device_mesh")
    if process_group is not None:
        return _checked(_place_in_group(process_group), stated, "process_group")
    world = _place_in_group(dist.group.WORLD) if dist.is_available() and dist.is_initialized() else None
    if stated is None:
        if world is not None and world.dp_size > 1:
            logger.info("data-parallel rank %d of %d, from the default process group", world.dp_rank, world.dp_size)
        return world or Place()
    # As many data-parallel ranks as there are processes: then the default group is theirs.
    groups = world.groups if world is not None and world.dp_size == stated[1] else ()
    return Place(dp_rank=stated[0], dp_size=stated[1], groups=groups)


def _place_in_group(group: Any) -> Place:
    rank, size = dist.get_rank(group), dist.get_world_size(group)
    if rank < 0:
        raise ConfigError("this process is not in process_group: pass the group of its own data-parallel ranks")
    return Place(dp_rank=rank, dp_size=size, groups=(group,) if size > 1 else ())


def _place_in_mesh(mesh: Any, dims: tuple[str, ...]) -> Place:
    names = mesh.mesh_dim_names or ()
    unknown = [dim for dim in dims if dim not in names]
    if unknown or not dims or len(set(dims)) < len(dims):
        raise ConfigError(
            f"dp_dims {dims} must name dimensions of the device mesh, each once; it has {', '.join(names) or 'none'}"
        )
    rank, size, groups = 0, 1, []
    for dim in dims:
        length = mesh.size(names.index(dim))
        rank, size = rank * length + mesh.get_local_rank(dim), size * length
        if length > 1:
            groups.append(mesh.get_group(dim))
    return Place(dp_rank=rank, dp_size=size, groups=tuple(groups))


def _checked(place: Place, stated: tuple[int, int] | None, source: str) -> Place:
    if stated is not None and stated != (place.dp_rank, place.dp_size):
        raise ConfigError(
            f"dp_rank {stated[0]} of {stated[1]} was stated, but {source} says {place.dp_rank} of {place.dp_size}:"
            " leave out one of the two"
        )
    return place


def _device(group: Any) -> torch.device:
    """Where a group's tensors must be: only some of its back ends take those of the CPU."""
    if any(name in str(dist.get_backend(group)) for name in ("gloo", "mpi", "cpu")):
        return torch.device("cpu")
    return torch.device("cuda", torch.cuda.current_device())
