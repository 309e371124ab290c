"""Which peers share their data: a mesh of pipeline, data, context and tensor dimensions, without processes."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest

from packloom.config import DistributionConfig
from packloom.errors import ConfigError
from packloom.loader import build_loader
from packloom.loader.distribution import find_place

SIZES = {"pp": 2, "dp_replicate": 2, "dp_shard": 3, "cp": 2, "tp": 2}


@dataclass(frozen=True)
class Mesh:
    """The face of a DeviceMesh, as one rank sees it; its groups are only told apart."""

    place: tuple[int, ...]
    mesh_dim_names: tuple[str, ...] | None = tuple(SIZES)

    def size(self, dim: int) -> int:
        return tuple(SIZES.values())[dim]

    def get_local_rank(self, dim: str) -> int:
        return self.place[tuple(SIZES).index(dim)]

    def get_group(self, dim: str) -> str:
        return f"group along {dim} at {self.place}"


def test_peers_in_all_other_dimensions_share_a_rank() -> None:
    dims = ("dp_replicate", "dp_shard")
    found: dict[tuple[int, int], set[tuple[int, int]]] = {}
    for place in itertools.product(*map(range, SIZES.values())):
        got = find_place(DistributionConfig(), device_mesh=Mesh(place), dp_dims=dims)
        assert got.groups == tuple(f"group along {dim} at {place}" for dim in dims)
        found.setdefault(place[1:3], set()).add((got.dp_rank, got.dp_size))
    assert found == {(a, b): {(3 * a + b, 6)} for a in range(2) for b in range(3)}


def test_what_a_mesh_and_the_settings_may_not_say() -> None:
    mesh = Mesh((0, 1, 2, 0, 0))
    for dims in (("dp",), (), ("dp_shard", "dp_shard")):
        with pytest.raises(ConfigError, match="must name dimensions of the device mesh, each once; it has pp, dp_repl"):
            find_place(DistributionConfig(), device_mesh=mesh, dp_dims=dims)
    with pytest.raises(ConfigError, match="it has none"):
        find_place(DistributionConfig(), device_mesh=Mesh((0,), None))
    with pytest.raises(ConfigError, match="dp_rank 0 of 2 was stated, but device_mesh says 1 of 2"):
        find_place(DistributionConfig(dp_rank=0, dp_size=2), device_mesh=mesh, dp_dims=("dp_replicate",))
    with pytest.raises(ConfigError, match="both given"):
        find_place(DistributionConfig(), device_mesh=mesh, process_group="g")


def test_peers_read_identical_data(write: Callable[..., str], encoder_class: Any, view: Callable[..., Any]) -> None:
    path = write([1 + place % 8 for place in range(40)])
    settings = {"num_lanes": 12, "min_lane_samples": 3, "dp_dims": ("dp_replicate", "dp_shard")}
    runs = []
    for place in ((0, 1, 2, 0, 0), (1, 1, 2, 1, 1), (0, 1, 1, 0, 0)):
        batches = build_loader(path, encoder_class(), device_mesh=Mesh(place), **settings)
        runs.append([view(batch) for batch, _ in zip(batches, range(6), strict=False)])
    assert runs[0] == runs[1] != runs[2]
