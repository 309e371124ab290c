"""save_state_dir and load_state_dir: a generation is whole, or it is not used."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable
from itertools import islice
from pathlib import Path
from typing import Any

import pytest

import packloom
from packloom.errors import StateError
from packloom.loader import load_state_dir, merge_states, save_state_dir

Fixture = Callable[..., Any]


@pytest.fixture
def states_after(write: Fixture, encoder_class: Any, build_ranks: Fixture) -> Callable[..., list[dict[str, Any]]]:
    """``states_after(steps, dp_size)``: the states of all ranks."""
    path = write([1 + place % 8 for place in range(60)])

    def made(steps: int, dp_size: int = 2) -> list[dict[str, Any]]:
        ranks = build_ranks(path, encoder_class(), dp_size, num_lanes=8, min_lane_samples=4)
        for loader in ranks:
            assert len(list(islice(loader, steps))) == steps
        return [loader.state_dict() for loader in ranks]

    return made


def test_the_latest_complete_generation(states_after: Fixture, tmp_path: Path, caplog: Any) -> None:
    folder = tmp_path / "data"
    first, second = states_after(3), states_after(5)
    assert save_state_dir(folder, first[0], step=30) == folder / "step-0000000030"
    with pytest.raises(StateError, match=r"step-0000000030 is incomplete: rank\(s\) 1 of 2 did not save"):
        load_state_dir(folder, 30)
    with pytest.raises(StateError, match="has no complete state in any of its 1 steps"):
        load_state_dir(folder)
    save_state_dir(folder, first[1], step=30, rank=1, world_size=2)
    assert load_state_dir(folder) == merge_states(first)
    save_state_dir(folder, second[1], step=50)
    with caplog.at_level(logging.WARNING):
        assert load_state_dir(folder)["batch"] == 6
    assert "step-0000000050 is incomplete: rank(s) 0 of 2 did not save; going back" in caplog.text
    save_state_dir(folder, second[0], step=50)
    assert load_state_dir(folder) == merge_states(second)
    assert load_state_dir(folder, 30) == merge_states(first)
    assert packloom.load_state_dir is load_state_dir


def test_what_another_run_left_at_a_step_is_not_mixed_in(states_after: Fixture, tmp_path: Path) -> None:
    for state in states_after(3, 4):
        save_state_dir(tmp_path, state, step=7)
    again = states_after(4, 2)
    save_state_dir(tmp_path, again[0], step=7)
    with pytest.raises(StateError, match=r"rank\(s\) 1 of 2 did not save"):
        load_state_dir(tmp_path, 7)
    save_state_dir(tmp_path, again[1], step=7)
    assert load_state_dir(tmp_path, 7) == merge_states(again)
    assert sorted(path.name for path in (tmp_path / "step-0000000007").iterdir()) == [
        "manifest.json", "rank-00000-of-00002.json", "rank-00001-of-00002.json"
    ]  # fmt: skip
    # The same number of ranks, but other batches: rank 1 is stale until it has saved too.
    later = states_after(5, 2)
    save_state_dir(tmp_path, later[0], step=7)
    with pytest.raises(StateError, match="its files are of different runs"):
        load_state_dir(tmp_path, 7)
    save_state_dir(tmp_path, later[1], step=7)
    assert load_state_dir(tmp_path, 7) == merge_states(later)


def test_files_that_came_to_harm(states_after: Fixture, tmp_path: Path) -> None:
    states = states_after(3)
    for state in states:
        save_state_dir(tmp_path, state, step=1)
    target = tmp_path / "step-0000000001" / "rank-00001-of-00002.json"
    whole = target.read_bytes()
    changed = json.loads(whole)
    changed["state"]["lanes"]["1"]["drawn"] += 1
    target.write_text(json.dumps(changed))
    with pytest.raises(StateError, match=r"rank-00001-of-00002\.json is not what the manifest says"):
        load_state_dir(tmp_path)
    target.write_bytes(whole[:-1])
    with pytest.raises(StateError, match=r"lacks rank\(s\) 1 of 2"):
        load_state_dir(tmp_path, 1)
    target.unlink()
    with pytest.raises(StateError, match=r"lacks rank\(s\) 1 of 2"):
        load_state_dir(tmp_path, 1)
    (target.parent / "manifest.json").write_text("{")
    with pytest.raises(StateError, match=r"manifest\.json is damaged"):
        load_state_dir(tmp_path)


def test_wrong_calls(states_after: Fixture, tmp_path: Path) -> None:
    state = states_after(1)[1]
    with pytest.raises(StateError, match="rank 0 was stated, but the state is that of dp_rank 1 of 2"):
        save_state_dir(tmp_path, state, step=1, rank=0)
    with pytest.raises(StateError, match="world_size 16 was stated"):
        save_state_dir(tmp_path, state, step=1, world_size=16)
    with pytest.raises(StateError, match="step must not be negative"):
        save_state_dir(tmp_path, state, step=-1)
    with pytest.raises(StateError, match="no complete state"):
        load_state_dir(tmp_path / "absent")
    with pytest.raises(StateError, match="no state of step 3: it has none"):
        load_state_dir(tmp_path, 3)
