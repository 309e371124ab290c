"""Loader states: plain JSON of where a run stands goes in and out; compared with the settings at hand, and merged."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict
from typing import Any, TypedDict, cast

from packloom.config import DataConfig
from packloom.errors import StateError
from packloom.loader.fingerprint import Fact
from packloom.loader.lane import LaneState

STATE_VERSION = 1
#: Settings on which no cost and no order depends, so that what waits may stay as it is when they change.
_HARMLESS = {"version", "epochs", "tail", "label_shift", "pad_to_multiple_of", "pad_to_length"}
_RANK_FIELDS = ("dp_rank", "lanes", "digest")


class LoaderState(TypedDict):
    """The state after the last batch that was consumed.

    A state of one rank of several (``dp_size`` above 1) holds its own lanes; ``merge_states`` makes one of all.
    """

    version: int
    dataset: str  # fingerprint
    encoder: dict[str, Fact]  # see encoder_fingerprint
    settings: dict[str, Fact]  # those that shape the sequence of batches
    num_lanes: int
    dp_rank: int
    dp_size: int
    pass_number: int
    batch: int  # global batches of this pass that all ranks have consumed
    lanes: dict[str, LaneState]  # a lane that is not here stands at the beginning of the pass
    digest: str  # of all the rest, by which a state is known that was edited or cut on its way


def shaping_settings(config: DataConfig, packer: str) -> dict[str, Fact]:
    """The settings that shape the sequence of batches."""
    source, loader = config.source, config.loader
    return {
        "seed": source.seed,
        "shuffle": source.shuffle,
        "shuffle_window": source.shuffle_window,
        "shuffle_block": source.shuffle_block,
        "epochs": source.epochs,
        "layout": loader.layout,
        "micro_batch_size": loader.micro_batch_size,
        "label_shift": loader.label_shift,
        "pad_to_multiple_of": loader.pad_to_multiple_of,
        "dummy_media": loader.dummy_media,
        "tail": loader.tail,
        "packer": packer,
        **asdict(config.packing),
    }


def check_state(saved: Mapping[str, Any], own: LoaderState, *, allow_mismatch: Collection[str]) -> LoaderState:
    """The saved state, if it is one of this dataset, encoder, seed and settings; else a StateError with both values.

    ``allow_mismatch`` names fields that may differ: "dataset", "encoder" (or "encoder.max_length", ...), "version", a
    setting, or "digest" for a state that was edited on purpose. Where one of these differs that orders or costs depend
    on, the samples that wait are drawn again.
    """
    state = _parse(saved, any_digest="digest" in allow_mismatch)
    differing = [
        (name, then, now) for name, then, now in _differences(state, own) if not _is_allowed(name, allow_mismatch)
    ]
    if differing:
        lines = "; ".join(f"{name} is {now!r}, the state was saved with {then!r}" for name, then, now in differing)
        names = ", ".join(repr(name) for name, _, _ in differing)
        raise StateError(
            f"the state does not fit: {lines}. Go back to the saved value, or go on all the same with"
            f" load_state_dict(state, allow_mismatch=[{names}])"
        )
    if state["num_lanes"] != own["num_lanes"]:
        raise StateError(
            f"the state has {state['num_lanes']} lanes, this loader {own['num_lanes']}: the order of all samples"
            " depends on it. Set num_lanes and min_lane_samples as they were, if the dataset is the same"
        )
    if state["dp_size"] != 1 and (state["dp_rank"], state["dp_size"]) != (own["dp_rank"], own["dp_size"]):
        raise StateError(
            f"the state is that of rank {state['dp_rank']} of {state['dp_size']}, this is rank {own['dp_rank']} of"
            f" {own['dp_size']}: join the states of all {state['dp_size']} ranks with packloom.merge_states, the result"
            " fits any rank"
        )
    if {name for name, _, _ in _differences(state, own)} <= _HARMLESS:
        return state
    return cast(LoaderState, {**state, "lanes": {name: _draw_again(lane) for name, lane in state["lanes"].items()}})


def merge_states(states: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """The states of all ranks, in any order, as one that any number of ranks and workers can load.

    Raises StateError for missing or doubled ranks, for states of different runs or of another version, for one that was
    changed, and for ranks that did not consume the same number of batches; it names them.
    """
    parsed = sorted((_parse(state) for state in states), key=lambda state: state["dp_rank"])
    for state in parsed:
        if state["version"] != STATE_VERSION:
            raise StateError(
                f"the state of rank {state['dp_rank']} has version {state['version']!r}, and states of version"
                f" {STATE_VERSION} are merged here: merge them with the packloom that saved them"
            )
    if not parsed:
        raise StateError("there are no states to merge: give those of all ranks")
    first = parsed[0]
    _check_ranks([state["dp_rank"] for state in parsed], first["dp_size"])
    for state in parsed[1:]:
        for name, then, now in _flat_differences(first, state):
            raise StateError(
                f"the states of rank {first['dp_rank']} and rank {state['dp_rank']} do not belong together: {name} is"
                f" {then!r} and {now!r}. Save the states of all ranks after the same step"
            )
    lanes: dict[str, LaneState] = {}
    for state in parsed:
        for number, lane in state["lanes"].items():
            if number not in lanes or lane["slots"] > lanes[number]["slots"]:
                lanes[number] = lane
    ordered = {number: lanes[number] for number in sorted(lanes, key=int)}
    return seal({**first, "dp_rank": 0, "dp_size": 1, "lanes": ordered})


def seal(state: Mapping[str, Any]) -> dict[str, Any]:
    """The state as what comes back of a JSON file, a copy of plain data, with its digest."""
    copied = json.loads(json.dumps({name: value for name, value in state.items() if name != "digest"}))
    text = json.dumps(copied, sort_keys=True)
    return {**copied, "digest": hashlib.sha256(text.encode()).hexdigest()[:16]}


def _parse(saved: Mapping[str, Any], *, any_digest: bool = False) -> LoaderState:
    if not isinstance(saved, Mapping):
        raise StateError(f"a loader state is a dict, got {type(saved).__name__}")
    missing = [name for name in LoaderState.__annotations__ if name not in saved]
    if missing:
        version = saved.get("version", STATE_VERSION)
        what = (
            "a loader state"
            if version == STATE_VERSION
            else f"a loader state of version {STATE_VERSION}, not {version}"
        )
        raise StateError(f"expected {what}; what was given lacks {', '.join(missing)}")
    try:
        state = seal(saved)
    except (TypeError, ValueError) as error:
        raise StateError(f"a loader state is plain JSON data; this one holds something else: {error}") from error
    if saved["version"] == STATE_VERSION and state["digest"] != saved["digest"] and not any_digest:
        raise StateError(
            f"the state was changed after it was saved: its digest is {saved['digest']!r}, its content gives"
            f" {state['digest']!r}. Take it as it was saved, or, if the change is meant, pass allow_mismatch=['digest']"
        )
    for number, lane in state["lanes"].items():
        if not number.isdigit() or set(lane) != set(LaneState.__annotations__):
            raise StateError(f"the state is damaged at lane {number!r}")
    return cast(LoaderState, state)


def _differences(saved: LoaderState, own: LoaderState) -> list[tuple[str, Any, Any]]:
    """(name, saved value, own value) of what a run must keep, the version first."""
    found: list[tuple[str, Any, Any]] = [
        ("version", saved["version"], own["version"]),
        ("dataset", saved["dataset"], own["dataset"]),
    ]
    for prefix, then, now in (("encoder.", saved["encoder"], own["encoder"]), ("", saved["settings"], own["settings"])):
        found += [(prefix + name, then.get(name), now.get(name)) for name in dict.fromkeys([*then, *now])]
    return [item for item in found if item[1] != item[2]]


def _flat_differences(first: LoaderState, other: LoaderState) -> list[tuple[str, Any, Any]]:
    names = [name for name in LoaderState.__annotations__ if name not in _RANK_FIELDS]
    pairs = [(name, first[name], other[name]) for name in names]  # type: ignore[literal-required]
    return [item for item in pairs if item[1] != item[2]]


def _is_allowed(name: str, allowed: Collection[str]) -> bool:
    return name in allowed or (name.startswith("encoder.") and "encoder" in allowed)


def _check_ranks(ranks: Sequence[int], dp_size: int) -> None:
    missing = sorted(set(range(dp_size)) - set(ranks))
    doubled = sorted({rank for rank in ranks if ranks.count(rank) > 1})
    if missing or doubled or len(ranks) != dp_size:
        told = [f"missing: {', '.join(map(str, missing))}"] if missing else []
        told += [f"given twice: {', '.join(map(str, doubled))}"] if doubled else []
        raise StateError(f"the states of all {dp_size} ranks are needed; {'; '.join(told)}")


def _draw_again(lane: LaneState) -> LaneState:
    """The lane with all that waits to be drawn once more, in order: its costs, or the samples themselves, changed."""
    columns = lane["waiting"].get("waiting", [])
    waiting = columns[0] if columns and isinstance(columns[0], list) else columns
    draws = sorted({*lane["again"], *waiting, *(draw for group in lane["ready"] for draw in group)})
    return {**lane, "ready": [], "waiting": {}, "again": draws}
