"""Lanes: the sequence of global batches is the same on any number of ranks and workers, and holds each sample once."""

from __future__ import annotations

import gc
import json
import random
from collections import Counter
from collections.abc import Callable
from itertools import islice
from typing import Any

import numpy as np
import pytest
import torch

from packloom.errors import ConfigError, PackloomError, TooManyErrors
from packloom.loader import build_loader
from packloom.rng import derive
from packloom.types import EncodedSample, Media

Fixture = Callable[..., Any]

SIZES = [1 + (place * 5) % 8 for place in range(60)]
#: One lane that ranks and workers share; a few; and as many as ranks times workers.
LANES = [{}, {"num_lanes": 24, "min_lane_samples": 10}, {"num_lanes": 24, "min_lane_samples": 2}]
LAYOUTS = [{"layout": "packed", "buffer_size": 4, "open_packs": 2}, {"layout": "padded", "micro_batch_size": 3}]


def _keys(sequence: list[Any]) -> Counter[str]:
    return Counter(key for keys, _ in sequence for key in keys)


@pytest.mark.parametrize("lanes", LANES, ids=["one", "shared", "own"])
@pytest.mark.parametrize("layout", LAYOUTS, ids=["packed", "padded"])
@pytest.mark.parametrize("shuffle", [True, False])
def test_any_number_of_ranks(
    write: Fixture,
    encoder_class: Any,
    build_ranks: Fixture,
    interleave: Fixture,
    shuffle: bool,
    layout: Any,
    lanes: Any,
) -> None:
    path = write(SIZES, {7: "cook", 30: "media"}, per_shard=11)
    settings = {"epochs": 2, "shuffle": shuffle, "seed": 1, "shuffle_block": 2, **layout, **lanes}
    reference = interleave(list(*build_ranks(path, encoder_class(), **settings)))
    assert _keys(reference) == {f"{place:04d}": 2 for place in range(60) if place not in (7, 30)}
    for dp_size in (2, 4):
        ranks = build_ranks(path, encoder_class(), dp_size, **settings)
        assert interleave(*map(list, ranks)) == reference
        records = Counter(record.key for loader in ranks for record in loader.skip_records)
        assert records == {"0007": 2, "0030": 2}


@pytest.mark.parametrize("lanes", LANES[::2], ids=["one", "own"])
@pytest.mark.parametrize("layout", LAYOUTS, ids=["packed", "padded"])
def test_any_number_of_workers(
    write: Fixture, encoder_class: Any, build_ranks: Fixture, interleave: Fixture, layout: Any, lanes: Any
) -> None:
    path = write(SIZES, {7: "cook", 30: "media"}, per_shard=11)
    settings = {"epochs": 1, "shuffle_block": 2, **layout, **lanes}
    reference = interleave(list(*build_ranks(path, encoder_class(), **settings)))
    for dp_size, num_workers in ((1, 2), (1, 3), (2, 3), (4, 1)):
        ranks = build_ranks(path, encoder_class(), dp_size, num_workers=num_workers, **settings)
        assert interleave(*map(list, ranks)) == reference
        assert Counter(record.key for loader in ranks for record in loader.skip_records) == {"0007": 1, "0030": 1}


@pytest.mark.parametrize("layout", LAYOUTS, ids=["packed", "padded"])
def test_an_endless_run(
    write: Fixture, encoder_class: Any, build_ranks: Fixture, interleave: Fixture, layout: Any
) -> None:
    path = write(SIZES, {7: "cook", 30: "media"})
    settings = {"num_lanes": 24, "min_lane_samples": 10, "shuffle_block": 2, **layout}
    [single] = build_ranks(path, encoder_class(), **settings)
    reference = interleave(list(islice(single, 96)))
    for dp_size in (2, 4):
        ranks = build_ranks(path, encoder_class(), dp_size, **settings)
        assert interleave(*(list(islice(loader, 96 // dp_size)) for loader in ranks)) == reference
    counts = _keys(reference)
    assert counts.keys() == {f"{place:04d}" for place in range(60) if place not in (7, 30)}
    if layout["layout"] == "padded":
        assert all(len(keys) == 3 for keys, _ in reference)  # bad media were replaced, not left out


def test_passes_go_on_with_the_next_epoch(write: Fixture, encoder_class: Any, view: Fixture) -> None:
    path = write(SIZES)
    loader = build_loader(path, encoder_class(), epochs=1)
    passes = [[view(batch) for batch in loader] for _ in range(3)]
    assert [view(batch) for batch in build_loader(path, encoder_class(), epochs=3)] == [
        *passes[0],
        *passes[1],
        *passes[2],
    ]
    assert passes[0] != passes[1]
    first = iter(build_loader(path, encoder_class(), epochs=1, seed=1))
    assert view(next(first)) != passes[0][0]


def test_the_next_loop_goes_on_behind_a_break(write: Fixture, encoder_class: Any, view: Fixture) -> None:
    path = write(SIZES)
    whole = [view(batch) for batch in build_loader(path, encoder_class(), epochs=1)]
    for settings in ({}, {"num_workers": 2}, {"num_workers": 2, "persistent_workers": True}):
        loader = build_loader(path, encoder_class(), epochs=1, **settings)
        parts = [[view(batch) for batch in islice(loader, count)] for count in (3, 1, 2)]
        assert [*parts[0], *parts[1], *parts[2], *(view(batch) for batch in loader)] == whole


def test_persistent_workers_live_on(write: Fixture, encoder_class: Any) -> None:
    class Counting(encoder_class):
        def collate(self, rows: Any, **settings: Any) -> Any:
            self.calls["collate"] += 1
            return {**super().collate(rows, **settings), "max_seqlen_q": self.calls["collate"]}

    def numbers(**settings: Any) -> list[int]:
        loader = build_loader(write(SIZES, name=str(settings)), Counting(), num_workers=1, **settings)
        return [batch["max_seqlen_q"] for _ in range(2) for batch in islice(loader, 3)]

    assert numbers(persistent_workers=True) == [1, 2, 3, 4, 5, 6]
    assert numbers() == [1, 2, 3, 1, 2, 3]


def test_an_older_iteration_does_not_go_on(write: Fixture, encoder_class: Any) -> None:
    loader = build_loader(write(SIZES), encoder_class(), epochs=1)
    older = iter(loader)
    next(older)
    next(iter(loader))
    with pytest.raises(PackloomError, match="a newer iteration"):
        next(older)


def test_media_are_read_again_where_samples_waited(write: Fixture, encoder_class: Any, view: Fixture) -> None:
    path = write([2] * 40, media=True)
    for settings in ({"open_packs": 2, "buffer_size": 8}, {"layout": "padded", "micro_batch_size": 4}):
        batches = [view(batch) for batch in build_loader(path, encoder_class(), epochs=1, **settings)]
        assert _keys(batches) == {f"{place:04d}": 1 for place in range(40)}
        for keys, numbers in batches:
            assert numbers[8:] == tuple(value for key in keys for value in (int(key), 7))


def test_random_encoders_are_exact_too(
    write: Fixture, encoder_class: Any, build_ranks: Fixture, interleave: Fixture, view: Fixture
) -> None:
    class Random(encoder_class):
        def encode_sample(self, raw: Any) -> Any:
            rng = derive(raw["__seed__"], "token")
            return super().encode_sample({**raw, "json": json.dumps({"n": 2, "token": rng.randrange(10**6)}).encode()})

    path = write([1] * 30)
    [single] = build_ranks(path, Random(2), epochs=2)
    reference = interleave(list(single))
    tokens = {(*keys, numbers[0]) for keys, numbers in reference}  # a pack holds one sample of two tokens
    assert len(tokens) == 60  # each sample has tokens of its own in each epoch
    for dp_size in (2, 4):
        assert interleave(*map(list, build_ranks(path, Random(2), dp_size, epochs=2))) == reference
    [first], [second] = build_ranks(path, Random(2), epochs=2), build_ranks(path, Random(2), epochs=2)
    got = [view(batch) for batch in islice(first, 3)]
    second.load_state_dict(first.state_dict())
    assert got + [view(batch) for batch in second] == reference


def test_shared_lanes_keep_no_samples_of_others(write: Fixture, encoder_class: Any) -> None:
    loader = build_loader(write([1 + place % 8 for place in range(50)]), encoder_class(), dp_rank=1, dp_size=4)
    counts = []
    for step, _ in enumerate(islice(loader, 150)):
        if step in (50, 149):
            counts.append(sum(type(thing) is EncodedSample for thing in gc.get_objects()))
    assert counts[1] < counts[0] + 20


def test_samples_that_wait_keep_no_media(write: Fixture, encoder_class: Any) -> None:
    stream = iter(build_loader(write([1] * 200, media=True), encoder_class(), open_packs=8))
    batch = next(stream)
    waiting = [thing.data for thing in gc.get_objects() if type(thing) is Media]
    assert len(waiting) > 50
    assert sum(map(bool, waiting)) <= batch["source_sample_num"]


def test_spawned_workers(write: Fixture, encoder_class: Any, view: Fixture) -> None:
    path = write(SIZES)
    whole = [view(batch) for batch in build_loader(path, encoder_class(), epochs=1)]
    loader = build_loader(path, encoder_class(), epochs=1, num_workers=1, start_method="spawn")
    assert [view(batch) for batch in loader] == whole


def test_the_global_generators_are_left_alone(write: Fixture, encoder_class: Any) -> None:
    path = write(SIZES, {3: "media"})
    states = random.getstate(), np.random.get_state()[1].tolist(), torch.get_rng_state().tolist()  # noqa: NPY002
    loader = build_loader(path, encoder_class(), num_workers=1, epochs=1)
    list(loader)
    loader.load_state_dict(loader.state_dict())
    list(build_loader(path, encoder_class(), epochs=1))
    assert (random.getstate(), np.random.get_state()[1].tolist(), torch.get_rng_state().tolist()) == states  # noqa: NPY002


@pytest.mark.parametrize("layout", LAYOUTS, ids=["packed", "padded"])
@pytest.mark.parametrize("fault", ["cook", "media"])
def test_an_endless_run_without_a_good_sample(write: Fixture, encoder_class: Any, fault: str, layout: Any) -> None:
    path = write([1] * 9, dict.fromkeys(range(9), fault))
    loader = build_loader(path, encoder_class(), max_consecutive_errors=10**9, **layout)
    with pytest.raises(TooManyErrors, match="most often with"):
        next(iter(loader))


def test_ranks_and_workers_that_cannot_share_the_lanes(write: Fixture, encoder_class: Any) -> None:
    with pytest.raises(
        ConfigError, match=r"dp_size 5 times num_workers 2 is 10, .*possible \(dp_size, num_workers\): \(\d"
    ):
        build_loader(write([1]), encoder_class(), dp_rank=0, dp_size=5, num_workers=2)
