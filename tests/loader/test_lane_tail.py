"""The end of a finite pass: all ranks get the same number of batches, by each policy, resumed or not."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable
from itertools import islice
from typing import Any

import pytest

from packloom.errors import ConfigError, TooManyErrors
from packloom.loader import build_loader, merge_states

Fixture = Callable[..., Any]

SIZES = [1 + (place * 5) % 8 for place in range(50)]
#: Unshuffled lanes take turns of 16 (packed) or 3 (padded) samples: these make some lanes much shorter than others.
FAULTS = {**dict.fromkeys(range(16, 30), "cook"), 3: "media", 34: "media", 35: "media", 49: "cook"}
GOOD = [f"{place:04d}" for place in range(50) if place not in FAULTS]
LANES = [{}, {"num_lanes": 8, "min_lane_samples": 6}, {"num_lanes": 8, "min_lane_samples": 1}]
LAYOUTS = [{"layout": "packed", "buffer_size": 4, "open_packs": 2}, {"layout": "padded", "micro_batch_size": 3}]


def _keys(batches: Any) -> list[str]:
    return [key for batch in batches for key in batch["sample_keys"]]


@pytest.mark.parametrize("lanes", LANES, ids=["one", "few", "many"])
@pytest.mark.parametrize("layout", LAYOUTS, ids=["packed", "padded"])
@pytest.mark.parametrize("shuffle", [True, False])
@pytest.mark.parametrize("tail", ["pad", "drop", "wrap"])
def test_equal_counts(
    write: Fixture, encoder_class: Any, build_ranks: Fixture, tail: Any, shuffle: bool, layout: Any, lanes: Any
) -> None:
    path = write(SIZES, FAULTS)
    settings = {"epochs": 2, "tail": tail, "shuffle": shuffle, "shuffle_block": 2, **layout, **lanes}
    for dp_size in (1, 2, 4):
        ranks = [list(loader) for loader in build_ranks(path, encoder_class(), dp_size, **settings)]
        assert len({len(batches) for batches in ranks}) == 1
        counts = Counter(key for batches in ranks for key in _keys(batches))
        if tail == "pad":
            assert counts == dict.fromkeys(GOOD, 2)
        elif tail == "drop":
            assert set(counts.values()) <= {1, 2}
            assert counts
        else:
            assert counts.keys() == set(GOOD)
            assert min(counts.values()) >= 2
        if layout["layout"] == "padded":
            assert {len(batch["input_ids"]) for batches in ranks for batch in batches} == {3}


@pytest.mark.parametrize("lanes", LANES, ids=["one", "few", "many"])
@pytest.mark.parametrize("layout", LAYOUTS, ids=["packed", "padded"])
def test_drop_keeps_all_whole_rounds(
    write: Fixture, encoder_class: Any, build_ranks: Fixture, layout: Any, lanes: Any
) -> None:
    path = write(SIZES, dict.fromkeys(range(16, 30), "cook"))
    settings = {"epochs": 2, "shuffle_block": 2, **layout, **lanes}
    for dp_size in (2, 4):
        sequences = {}
        for tail in ("pad", "drop"):
            ranks = build_ranks(path, encoder_class(), dp_size, tail=tail, **settings)
            num_lanes = ranks[0].state_dict()["num_lanes"]
            steps = zip(*map(list, ranks), strict=True)
            sequences[tail] = [tuple(batch["sample_keys"]) for step in steps for batch in step]
        kept = len(sequences["drop"])
        assert kept > 0
        assert sequences["drop"] == sequences["pad"][:kept]
        whole = layout.get("micro_batch_size", 1)
        lacking = [len(keys) < whole for keys in sequences["pad"]]
        assert not any(lacking[:kept])
        assert kept == len(lacking) or any(lacking[kept : kept + math.lcm(num_lanes, dp_size)])


def test_filler_batches(write: Fixture, encoder_class: Any, build_ranks: Fixture) -> None:
    path = write([8, 8, 8, 8, 8])
    ranks = build_ranks(path, encoder_class(), 2, epochs=1)
    batches = [list(loader) for loader in ranks]
    assert [[len(batch["sample_keys"]) for batch in each] for each in batches] == [[1, 1, 1], [1, 1, 0]]
    filler = batches[1][2]
    assert filler["labels"].tolist() == [[-100]]
    assert filler["loss_mask"].tolist() == [[0.0]]
    assert filler["position_ids"].tolist() == [[0]]
    assert [filler[name] for name in ("source_sample_num", "num_input_tokens", "num_loss_tokens")] == [0, 0, 0]
    assert filler.keys() == batches[1][1].keys()
    assert (ranks[1].metrics()["filler_rows"], ranks[1].metrics()["samples"]) == (1, 2)
    fixed = build_ranks(path, encoder_class(), 2, epochs=1, pad_to_length=True)
    assert [tuple(batch["input_ids"].shape) for batch in list(fixed[1])] == [(1, 8)] * 3


def test_fillers_have_no_media(write: Fixture, encoder_class: Any, build_ranks: Fixture) -> None:
    path = write([8, 8, 8], media=True)
    batches = [list(loader) for loader in build_ranks(path, encoder_class(), 2, epochs=1)]
    assert ["pixel_values" in batch for batch in batches[1]] == [True, False]


def test_a_pack_that_loses_all_its_media(write: Fixture, encoder_class: Any, build_ranks: Fixture) -> None:
    path = write([8] * 6, {2: "media", 3: "media"})
    settings = {"epochs": 1, "shuffle": False}
    [single] = [list(loader) for loader in build_ranks(path, encoder_class(), **settings)]
    assert [batch["sample_keys"] for batch in single] == [["0000"], ["0001"], ["0004"], ["0005"]]
    batches = [list(loader) for loader in build_ranks(path, encoder_class(), 2, **settings)]
    assert [[batch["sample_keys"] for batch in each] for each in batches] == [
        [["0000"], [], ["0004"]],
        [["0001"], [], ["0005"]],
    ]
    # An endless run has no use for a batch that trains nothing: the samples behind take the place of the bad ones.
    endless = build_loader(path, encoder_class(), layout="padded", micro_batch_size=2, shuffle=False)
    batches = [batch["sample_keys"] for batch in islice(endless, 4)]
    assert batches == [["0000", "0001"], ["0004", "0005"], ["0004", "0005"], ["0000", "0001"]]
    packed = build_loader(path, encoder_class(), shuffle=False, open_packs=1)
    assert [batch["sample_keys"] for batch in islice(packed, 4)] == [["0000"], ["0001"], ["0004"], ["0004"]]


@pytest.mark.parametrize("layout", LAYOUTS, ids=["packed", "padded"])
@pytest.mark.parametrize("lanes", LANES[:2], ids=["one", "few"])
@pytest.mark.parametrize("tail", ["pad", "drop", "wrap"])
def test_a_resumed_tail_is_the_same_fillers_included(
    write: Fixture, encoder_class: Any, build_ranks: Fixture, view: Fixture, tail: Any, lanes: Any, layout: Any
) -> None:
    path = write(SIZES[:36], FAULTS)
    settings = {"epochs": 1, "tail": tail, "shuffle": False, **layout, **lanes}
    ranks = build_ranks(path, encoder_class(), 2, **settings)
    whole = [[view(batch) for batch in loader] for loader in ranks]
    assert len(whole[0]) > 1
    ranks = build_ranks(path, encoder_class(), 2, **settings)
    streams = [iter(loader) for loader in ranks]
    for step in range(len(whole[0]) + 1):
        states = [loader.state_dict() for loader in ranks]
        merged = merge_states(states)
        for state in (states, [merged, merged]):
            again = build_ranks(path, encoder_class(), 2, **settings)
            for loader, own in zip(again, state, strict=True):
                loader.load_state_dict(own)
            assert [[view(batch) for batch in loader] for loader in again] == [batches[step:] for batches in whole]
        for stream in streams:
            next(stream, None)


def test_drop_that_leaves_nothing(write: Fixture, encoder_class: Any) -> None:
    settings = {"epochs": 1, "tail": "drop", "dp_rank": 0, "dp_size": 4}
    with pytest.raises(ConfigError, match="leaves not one batch: 3 samples do not make a whole round of 4 batches"):
        list(build_loader(write([8, 8, 8]), encoder_class(), **settings))


@pytest.mark.parametrize("tail", ["pad", "wrap"])
def test_no_good_sample_on_several_ranks(write: Fixture, encoder_class: Any, tail: Any) -> None:
    path = write([8, 8, 8], dict.fromkeys(range(3), "cook"))
    settings = {"epochs": 1, "tail": tail, "dp_rank": 1, "dp_size": 2}
    with pytest.raises(TooManyErrors, match=r"all 3 samples .* most often with cook\.image_count"):
        list(build_loader(path, encoder_class(), **settings))


@pytest.mark.parametrize("num_workers", [0, 2])
def test_bad_samples_behind_the_last_batch_are_reported(write: Fixture, encoder_class: Any, num_workers: int) -> None:
    path = write([8, 8, 8, 8, 8, 8], {4: "cook", 5: "cook"})
    for settings in ({"layout": "padded", "micro_batch_size": 2}, {"layout": "packed"}):
        loader = build_loader(path, encoder_class(), shuffle=False, epochs=1, num_workers=num_workers, **settings)
        assert sorted(_keys(loader)) == ["0000", "0001", "0002", "0003"]
        assert sorted(record.key for record in loader.skip_records) == ["0004", "0005"]


def test_what_waits_in_a_lane_without_hope_still_arrives(write: Any, encoder_class: Any) -> None:
    """Wrapping, a lane that meets bad samples only gives what it has instead of waiting for mates for ever."""
    path = write([1] * 5, {0: "cook", 1: "cook", 3: "cook"})
    settings = {"layout": "padded", "micro_batch_size": 5, "tail": "wrap", "num_lanes": 4, "min_lane_samples": 1}
    for seed in range(3):
        loader = build_loader(path, encoder_class(), epochs=3, shuffle_block=1, seed=seed, **settings)
        seen = {key for batch in loader for key in batch["sample_keys"]}
        assert {"0002", "0004"} <= seen
