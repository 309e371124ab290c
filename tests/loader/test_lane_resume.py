"""Exact resume: saved at every step, loaded on another number of ranks and workers, the rest is the same."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Sequence
from itertools import islice
from typing import Any

import pytest

from packloom.errors import StateError
from packloom.loader import Loader, build_loader, merge_states

Fixture = Callable[..., Any]

SIZES = [1 + (place * 5) % 8 for place in range(40)]
FAULTS = {7: "cook", 17: "media"}
LANES = [{"shuffle_block": 2}, {"num_lanes": 8, "min_lane_samples": 2, "shuffle_block": 2}]
LAYOUTS = [{"layout": "packed", "buffer_size": 4, "open_packs": 2}, {"layout": "padded", "micro_batch_size": 3}]


def saved(loader: Loader) -> dict[str, Any]:
    """The state as it comes back from a file."""
    return json.loads(json.dumps(loader.state_dict()))


def resumed(loaders: Sequence[Loader], state: dict[str, Any]) -> list[Loader]:
    for loader in loaders:
        loader.load_state_dict(state)
    return list(loaders)


@pytest.mark.parametrize("epochs", [2, None])
@pytest.mark.parametrize("lanes", LANES, ids=["one", "eight"])
@pytest.mark.parametrize("layout", LAYOUTS, ids=["packed", "padded"])
def test_every_step_on_other_ranks(
    write: Fixture, encoder_class: Any, build_ranks: Fixture, interleave: Fixture, layout: Any, lanes: Any, epochs: Any
) -> None:
    path = write(SIZES[:20], FAULTS, per_shard=9, media=True)
    settings = {"epochs": epochs, **layout, **lanes}
    total = 28  # of the endless run: some epochs
    [whole] = build_ranks(path, encoder_class(), **settings)
    batches = list(islice(whole, total if epochs is None else None))
    [loader] = build_ranks(path, encoder_class(), **settings)
    stream = iter(loader)
    for step in range(len(batches) + 1):
        state = saved(loader)
        [same] = resumed(build_ranks(path, encoder_class(), **settings), state)
        assert same.state_dict() == state
        dp_size = (2, 4, 1, 8)[step % 4]
        ranks = resumed(build_ranks(path, encoder_class(), dp_size, **settings), state)
        # Endless ranks get as many batches as the rest of the reference fills.
        count = None if epochs else (total - step) // dp_size
        rest = interleave(*(list(islice(rank, count)) for rank in ranks))
        expected = interleave(batches[step:])
        assert rest == (expected if epochs else expected[: len(rest)])
        next(stream, None)


@pytest.mark.parametrize("lanes", LANES, ids=["one", "eight"])
@pytest.mark.parametrize("layout", LAYOUTS, ids=["packed", "padded"])
def test_every_step_of_two_ranks_merged(
    write: Fixture, encoder_class: Any, build_ranks: Fixture, interleave: Fixture, layout: Any, lanes: Any
) -> None:
    path = write(SIZES[:20], FAULTS)
    settings = {"epochs": 2, **layout, **lanes}
    [single] = build_ranks(path, encoder_class(), **settings)
    reference = interleave(list(single))
    ranks = build_ranks(path, encoder_class(), 2, **settings)
    streams, before = [iter(rank) for rank in ranks], []
    while True:
        states = [saved(rank) for rank in ranks]
        same = build_ranks(path, encoder_class(), 2, **settings)
        for rank, state in zip(same, states, strict=True):
            rank.load_state_dict(state)
            assert rank.state_dict() == state
        merged = merge_states(states[::-1])
        assert merge_states([merged]) == merged
        [one] = resumed(build_ranks(path, encoder_class(), **settings), merged)
        assert before + interleave(list(one)) == reference
        assert before + interleave(*map(list, same)) == reference
        step = [next(stream, None) for stream in streams]
        if None in step:
            assert step == [None, None]
            return
        before += interleave(*([batch] for batch in step))


def test_workers_and_resuming_twice(write: Fixture, encoder_class: Any, view: Fixture) -> None:
    path = write(SIZES, FAULTS, media=True)
    settings = {**LANES[1], **LAYOUTS[0], "epochs": 2}
    whole = [view(batch) for batch in build_loader(path, encoder_class(), **settings)]
    for layout in ({"num_workers": 2}, {"num_workers": 2, "persistent_workers": True, "prefetch_factor": 4}):
        state, got = None, []
        for count, num_workers in ((4, 2), (5, 1), (7, 0), (len(whole), 2)):
            loader = build_loader(path, encoder_class(), **{**settings, **layout, "num_workers": num_workers})
            if state is not None:
                loader.load_state_dict(state)
            got += [view(batch) for batch in islice(loader, count)]
            state = saved(loader)
        assert got == whole


def test_the_end_of_a_pass(write: Fixture, encoder_class: Any, view: Fixture) -> None:
    path = write(SIZES, {39: "cook"})
    settings = {**LAYOUTS[0], "epochs": 1}
    loader = build_loader(path, encoder_class(), **settings)
    passes = [[view(batch) for batch in loader] for _ in range(2)]
    at_last_batch = build_loader(path, encoder_class(), **settings)
    stream = iter(at_last_batch)
    for _ in passes[0]:
        next(stream)
    # The loop over the pass has not ended yet, so the loop that resumes it ends at once; the next pass follows.
    again = build_loader(path, encoder_class(), **settings)
    again.load_state_dict(saved(at_last_batch))
    assert [[view(batch) for batch in again] for _ in range(2)] == [[], passes[1]]
    assert next(stream, None) is None
    again.load_state_dict(saved(at_last_batch))  # now it has ended
    assert [view(batch) for batch in again] == passes[1]


def test_a_loaded_state_replaces_the_running_iteration(write: Fixture, encoder_class: Any, view: Fixture) -> None:
    loader = build_loader(write(SIZES), encoder_class(), epochs=1, num_workers=1, persistent_workers=True)
    start = saved(loader)
    whole = [view(batch) for batch in loader]
    loader.load_state_dict(start)
    stream = iter(loader)
    assert view(next(stream)) == whole[0]
    middle = saved(loader)
    next(stream)
    loader.load_state_dict(middle)
    assert [view(batch) for batch in loader] == whole[1:]


def test_nothing_but_the_next_batch_is_read_after_a_resume(write: Fixture, encoder_class: Any) -> None:
    path = write([1 + place % 8 for place in range(400)], media=True)
    first = build_loader(path, encoder_class(), num_lanes=4, min_lane_samples=50)
    for _ in zip(first, range(25), strict=False):
        pass
    encoder = encoder_class()
    second = build_loader(path, encoder, num_lanes=4, min_lane_samples=50)
    second.load_state_dict(saved(first))
    assert not encoder.calls
    batch = next(iter(second))
    assert encoder.calls["load"] == batch["source_sample_num"]
    # The samples of the batch, and those drawn until the packer had one more than its buffer holds.
    assert encoder.calls["encode"] <= 2 * batch["source_sample_num"] + 4


@pytest.mark.parametrize("layout", LAYOUTS, ids=["packed", "padded"])
def test_the_size_of_a_state(write: Fixture, encoder_class: Any, layout: Any) -> None:
    """At most 1.5 KB, 400 bytes per lane and 40 per sample that waits: the bound that docs/resume.md gives."""
    path = write([1 + place % 8 for place in range(300)])
    settings = {**layout, "pack_length": 64, "buffer_size": 64, "open_packs": 16}
    loader = build_loader(path, encoder_class(), num_lanes=96, min_lane_samples=2, **settings)
    for _ in zip(loader, range(100), strict=False):
        pass
    state = loader.state_dict()
    waiting = sum(
        len(lane["waiting"]["waiting"][0]) if lane["waiting"]["waiting"] else 0
        for lane in state["lanes"].values()
        if layout["layout"] == "packed"
    )
    waiting += sum(len(group) for lane in state["lanes"].values() for group in lane["ready"])
    assert len(state["lanes"]) == 96
    assert waiting > 4500 or layout["layout"] == "padded"
    assert len(json.dumps(state)) <= 1500 + 400 * 96 + 40 * waiting


MISMATCHES = [
    ({"seed": 5}, r"seed is 5, the state was saved with 0.*allow_mismatch=\['seed'\]"),
    ({"shuffle": False}, "shuffle is False, the state was saved with True"),
    ({"pack_length": 16}, "pack_length is 16, the state was saved with 8"),
    ({"label_shift": "none"}, "label_shift is 'none', the state was saved with 'next_token'"),
    ({"epochs": 3}, "epochs is 3, the state was saved with None"),
    ({"layout": "padded", "micro_batch_size": 4}, "layout is 'padded', the state was saved with 'packed'"),
    ({"num_lanes": 4, "min_lane_samples": 1}, "the state has 1 lanes, this loader 4"),
]


@pytest.mark.parametrize(("settings", "message"), MISMATCHES)
def test_other_settings(write: Fixture, encoder_class: Any, settings: Any, message: str) -> None:
    path = write(SIZES)
    state = build_loader(path, encoder_class()).state_dict()
    with pytest.raises(StateError, match=message):
        build_loader(path, encoder_class(), **settings).load_state_dict(state)


def test_another_dataset_encoder_or_version(write: Fixture, encoder_class: Any) -> None:
    path, other = write(SIZES), write(SIZES[:-1], name="other")
    loader = build_loader(path, encoder_class(6), pack_length=8)
    state = loader.state_dict()
    changed = build_loader(other, encoder_class(6), pack_length=8)
    with pytest.raises(StateError, match=f"dataset is '{changed.state_dict()['dataset']}', .* '{state['dataset']}'"):
        changed.load_state_dict(state)
    with pytest.raises(StateError, match=r"encoder\.max_length is 7, the state was saved with 6"):
        build_loader(path, encoder_class(7), pack_length=8).load_state_dict(state)
    with pytest.raises(StateError, match="version is 1, the state was saved with 2"):
        loader.load_state_dict({**state, "version": 2})
    with pytest.raises(StateError, match="expected a loader state of version 1, not 3; what was given lacks dataset, "):
        loader.load_state_dict({"version": 3})
    with pytest.raises(StateError, match="expected a loader state; what was given lacks version, dataset, "):
        loader.load_state_dict({"epoch": 3})
    with pytest.raises(StateError, match="a loader state is a dict, got list"):
        loader.load_state_dict([])


def test_overrides(write: Fixture, encoder_class: Any) -> None:
    """What waited under other settings is drawn again, so that each sample of the epoch still comes once."""
    path = write(SIZES)
    first = build_loader(path, encoder_class(), epochs=1, **LAYOUTS[0])
    before = [key for batch in islice(first, 6) for key in batch["sample_keys"]]
    second = build_loader(path, encoder_class(), epochs=1, pack_length=16, open_packs=3)
    with pytest.raises(StateError, match=r"allow_mismatch=\['pack_length', 'open_packs', 'buffer_size'\]"):
        second.load_state_dict(saved(first), allow_mismatch="seed")
    second.load_state_dict(saved(first), allow_mismatch=["pack_length", "open_packs", "buffer_size"])
    after = [key for batch in second for key in batch["sample_keys"]]
    assert sorted(before + after) == [f"{place:04d}" for place in range(40)]
    third = build_loader(path, encoder_class(8), epochs=2, tail="wrap", label_shift="none", **LAYOUTS[0])
    third.load_state_dict(saved(first), allow_mismatch=["epochs", "tail", "label_shift"])
    assert len([key for batch in third for key in batch["sample_keys"]]) == 80 - len(before)


def test_states_of_ranks(write: Fixture, encoder_class: Any, build_ranks: Fixture) -> None:
    path = write(SIZES)
    states = []
    for steps, loader in enumerate(build_ranks(path, encoder_class(), 4), start=3):
        list(islice(loader, 3))
        states.append(saved(loader))
        if steps == 6:
            list(islice(loader, 1))
            late = saved(loader)
    with pytest.raises(StateError, match=r"that of rank 1 of 4, this is rank 0 of 2: .*packloom\.merge_states"):
        build_ranks(path, encoder_class(), 2)[0].load_state_dict(states[1])
    with pytest.raises(StateError, match="that of rank 1 of 4, this is rank 2 of 4"):
        build_ranks(path, encoder_class(), 4)[2].load_state_dict(states[1])
    with pytest.raises(StateError, match="all 4 ranks are needed; missing: 1, 2"):
        merge_states([states[0], states[3]])
    with pytest.raises(StateError, match="missing: 3; given twice: 0"):
        merge_states([*states[:3], states[0]])
    with pytest.raises(StateError, match="rank 0 and rank 3 do not belong together: batch is 12 and 16"):
        merge_states([*states[:3], late])
    other = {**states[2], "version": 2, "batch": 99}  # whatever its digest means there
    with pytest.raises(StateError, match="of rank 2 has version 2, and states of version 1 are merged here"):
        merge_states([*states[:2], other, states[3]])
    with pytest.raises(StateError, match=r"its digest is .*, its content gives "):
        merge_states([*states[:2], {**states[2], "batch": 99}, states[3]])
    with pytest.raises(StateError, match="no states to merge"):
        merge_states([])
    merged = merge_states(states)
    assert (merged["batch"], merged["lanes"]["0"]["slots"]) == (12, 12)  # the lane where the last rank left it


def test_samples_that_grew_since(write: Fixture, encoder_class: Any) -> None:
    """An encoder that changed unnoticed: its packs must not overflow in silence."""

    class Longer(encoder_class):
        def encode_sample(self, raw: Any) -> Any:
            self.calls["encode"] += 1
            return super().encode_sample({**raw, "json": raw["json"].replace(b'"n": ', b'"n": 3')})

    path = write([1] * 120)
    loader = build_loader(path, encoder_class(40), epochs=3)
    first = next(iter(loader))
    changed = Longer(40)
    other = build_loader(path, changed, epochs=3)
    with pytest.raises(StateError, match=r"encoder\.class is"):
        other.load_state_dict(saved(loader))
    other.load_state_dict(saved(loader), allow_mismatch=["encoder"])  # knowing it, all that waited is encoded again
    counts = Counter(key for batch in [first, *other] for key in batch["sample_keys"])
    assert counts == {f"{place:04d}": 3 for place in range(120)}
    Longer.__module__, Longer.__qualname__ = encoder_class.__module__, encoder_class.__qualname__
    other = build_loader(path, changed, epochs=3)
    other.load_state_dict(saved(loader))
    with pytest.raises(StateError, match="shared a pack when the state was saved; now they have"):
        next(iter(other))
