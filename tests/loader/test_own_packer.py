"""A user's streaming packer: the sequence depends on it alone, and its own state is part of every state."""

from __future__ import annotations

import json
from collections.abc import Callable
from itertools import islice
from typing import Any

import pytest

from packloom.errors import PackingError, StateError
from packloom.loader import build_loader, merge_states
from packloom.packing import Cost, PackerFactory, PackLimits

Fixture = Callable[..., Any]


class Pairs:
    """Every second sample leaves with the one before it. Its state gives names of packloom's own other meanings."""

    def __init__(self, limits: PackLimits) -> None:
        self.limits = limits
        self.state: dict[str, Any] = {"waiting": {}, "version": "pairs", "pushed": [0]}

    def push(self, index: int, cost: Cost) -> list[list[int]]:
        self.state["pushed"][0] += 1
        if not self.state["waiting"]:
            self.state["waiting"]["first"] = index
            return []
        return [[self.state["waiting"].pop("first"), index]]

    def finish(self) -> list[list[int]]:
        return [[self.state["waiting"].pop("first")]] if self.state["waiting"] else []

    def state_dict(self) -> dict[str, Any]:
        return self.state  # what it goes on with itself

    def load_state_dict(self, state: dict[str, Any]) -> None:
        assert state.keys() == {"waiting", "version", "pushed"}
        self.state = state


SIZES = [1 + place % 4 for place in range(31)]
SETTINGS = {"epochs": 2, "num_lanes": 4, "min_lane_samples": 5, "packer": PackerFactory(make=Pairs)}


def test_resume_at_every_step(
    write: Fixture, encoder_class: Any, build_ranks: Fixture, interleave: Fixture, view: Fixture
) -> None:
    path = write(SIZES, {9: "cook"})
    [single] = build_ranks(path, encoder_class(), **SETTINGS)
    reference = interleave(list(single))
    assert {len(keys) for keys, _ in reference} == {1, 2}
    assert sorted(key for keys, _ in reference for key in keys) == sorted(
        2 * [f"{place:04d}" for place in range(31) if place != 9]
    )
    ranks = build_ranks(path, encoder_class(), 2, **SETTINGS)
    streams, got = [iter(rank) for rank in ranks], []
    for step in range(len(reference) // 2):
        state = json.loads(json.dumps(merge_states([rank.state_dict() for rank in ranks])))
        [again] = build_ranks(path, encoder_class(), num_workers=int(step % 8 == 3), **SETTINGS)
        again.load_state_dict(state)
        assert again.state_dict() == state
        assert got + [view(batch) for batch in again if batch["sample_keys"]] == reference
        got += interleave(*([next(stream)] for stream in streams))


def test_another_packer_is_another_run(write: Fixture, encoder_class: Any) -> None:
    path = write(SIZES)
    state = build_loader(path, encoder_class(), **SETTINGS).state_dict()
    assert state["settings"]["packer"].endswith("test_own_packer.Pairs")
    with pytest.raises(StateError, match=r"packer is 'best_fit', the state was saved with '.*\.Pairs'"):
        build_loader(path, encoder_class(), **{**SETTINGS, "packer": None}).load_state_dict(state)


def test_a_packer_that_breaks_the_contract(write: Fixture, encoder_class: Any) -> None:
    class Overfull(Pairs):
        pass

    class Tuples(Pairs):
        def state_dict(self) -> dict[str, Any]:
            return {"pushed": (1, 2)}

    class Objects(Pairs):
        def state_dict(self) -> dict[str, Any]:
            return {"limits": self.limits}

    class Hoarding(Pairs):
        def push(self, index: int, cost: Cost) -> list[list[int]]:
            return []

    path = write([8] * 40)
    for kind, message in (
        (Overfull, "overfills its pack"),
        (Tuples, r"changes on its way through JSON, from \{'pushed': \(1, 2\)\}"),
        (Objects, "is not plain JSON data: .*PackLimits"),
        (Hoarding, "still waits after 21 further samples, max_wait is 20"),
    ):
        path = write([8 if kind is Overfull else 4] * 40, name=kind.__name__)
        loader = build_loader(path, encoder_class(), packer=PackerFactory(make=kind), max_wait=20)
        with pytest.raises(PackingError, match=message):
            list(islice(loader, 3))
