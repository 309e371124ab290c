"""States that were edited, datasets that were indexed again, and every step resumed on other ranks and workers."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from itertools import islice
from pathlib import Path
from typing import Any

import pytest

from packloom.datasets import build_index
from packloom.errors import ShardError, StateError
from packloom.loader import Loader, build_loader, merge_states

Fixture = Callable[..., Any]

SIZES = [1 + (place * 5) % 8 for place in range(40)]
LANES = {"num_lanes": 8, "min_lane_samples": 2, "shuffle_block": 2}
PACKED = {"buffer_size": 4, "open_packs": 2}


def saved(loader: Loader) -> dict[str, Any]:
    """The state as it comes back from a file."""
    return json.loads(json.dumps(loader.state_dict()))


@pytest.mark.parametrize("settings", [PACKED, {"layout": "padded", "micro_batch_size": 3}], ids=["packed", "padded"])
def test_every_step_on_other_ranks_and_workers_twice(
    write: Fixture, encoder_class: Any, build_ranks: Fixture, interleave: Fixture, settings: Any
) -> None:
    """Over the end of an epoch too: the run that resumes is saved after one step, and resumed again elsewhere."""
    path = write(SIZES[:16], {3: "cook", 11: "media"}, media=True)
    settings = {"epochs": 2, "num_lanes": 8, "min_lane_samples": 4, "shuffle_block": 2, **settings}
    [single] = build_ranks(path, encoder_class(), **settings)
    stream, states = iter(single), [saved(single)]
    batches = []
    for batch in stream:
        batches.append(batch)
        states.append(saved(single))
    reference = interleave(batches)
    for step, state in enumerate(states[:-2]):
        dp_size, num_workers = ((2, 1), (1, 2), (2, 0), (1, 1), (4, 0))[step % 5]
        ranks = build_ranks(path, encoder_class(), dp_size, num_workers=num_workers, **settings)
        for rank in ranks:
            rank.load_state_dict(state)
        got = reference[:step] + interleave(*(list(islice(rank, 1)) for rank in ranks))
        [again] = build_ranks(path, encoder_class(), num_workers=step % 2, **settings)
        again.load_state_dict(merge_states([saved(rank) for rank in ranks]))
        assert got + interleave(list(again)) == reference, (step, dp_size, num_workers)


def test_states_that_were_edited(write: Fixture, encoder_class: Any, build_ranks: Fixture) -> None:
    path = write(SIZES)
    settings = {**PACKED, **LANES}
    [loader] = build_ranks(path, encoder_class(), **settings)
    list(islice(loader, 9))
    state = saved(loader)
    lane = {**state["lanes"]["1"], "drawn": state["lanes"]["1"]["drawn"] + 1}
    for change in (
        {"lanes": {**state["lanes"], "1": lane}},  # a sample would be lost
        {"lanes": {number: kept for number, kept in state["lanes"].items() if number != "3"}},
        {"lanes": []},
        {"batch": 10},
        {"pass_number": None},
        {"dp_size": 0},
        {"settings": {**state["settings"], "seed": 5}},
    ):
        with pytest.raises(StateError, match=r"was changed after it was saved.*allow_mismatch=\['digest'\]"):
            loader.load_state_dict({**state, **change})
    with pytest.raises(StateError, match="holds something else"):
        loader.load_state_dict({**state, "lanes": {1, 2}})
    with pytest.raises(StateError, match="damaged at lane 'x'"):
        loader.load_state_dict({**state, "lanes": {"x": {}}}, allow_mismatch=["digest"])
    ranks = build_ranks(path, encoder_class(), 2, **settings)
    parts = [saved(rank) for rank in ranks]
    with pytest.raises(StateError, match="was changed after it was saved"):
        merge_states([parts[0], {**parts[1], "dp_rank": 1, "batch": 2}])
    loader.load_state_dict({**state, "lanes": {**state["lanes"], "1": lane}}, allow_mismatch=["digest"])
    assert next(iter(loader))
    loader.load_state_dict(dict(reversed(state.items())))  # the order of keys is no change


def test_a_dataset_that_was_indexed_again(write: Fixture, encoder_class: Any, view: Fixture, tmp_path: Path) -> None:
    """What counts is the content: the index, names and places of shards may be new; more samples are another set."""
    path = write(SIZES, per_shard=15)
    whole = [view(batch) for batch in build_loader(path, encoder_class(), epochs=1)]
    loader = build_loader(path, encoder_class(), epochs=1)
    got = [view(batch) for batch in islice(loader, 3)]
    moved = tmp_path / "moved"
    moved.mkdir()
    for number, shard in enumerate(sorted(Path(path).glob("*.tar"))):
        shutil.copy(shard, moved / f"part-{number}.tar")
    build_index(moved)
    again = build_loader(moved, encoder_class(), epochs=1)
    again.load_state_dict(saved(loader))
    assert got + [view(batch) for batch in again] == whole
    shutil.copy(moved / "part-0.tar", moved / "part-9.tar")
    with pytest.raises(ShardError, match=r"part-9\.tar, have no index"):
        build_loader(moved, encoder_class(), epochs=1)
    build_index(moved)
    with pytest.raises(StateError, match=r"dataset is '.*', the state was saved with '.*'.*\['dataset'\]"):
        build_loader(moved, encoder_class(), epochs=1).load_state_dict(saved(loader))
