"""Blends in the loader: shares per lane, exact epochs, and the elastic and resume properties of single datasets."""

from __future__ import annotations

import json
import pickle
from collections import Counter
from collections.abc import Callable
from fractions import Fraction
from itertools import islice
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from packloom.blend import Blend, Leaf
from packloom.config import DataConfig, LoaderConfig, SourceConfig
from packloom.datasets.aux_media import AuxLibrary
from packloom.errors import ConfigError, StateError
from packloom.loader import build_loader
from packloom.loader.feeds import make_feed

Fixture = Callable[..., Any]

LANES = [{}, {"num_lanes": 8, "min_lane_samples": 2}]
LAYOUTS = [{"layout": "packed", "buffer_size": 4, "open_packs": 2}, {"layout": "padded", "micro_batch_size": 3}]


@pytest.fixture
def folders(write: Fixture) -> list[str]:
    """Datasets of 20, 9 and 2 samples; one of the first fails when it is encoded, another's media fail."""
    first = write([1 + (place * 5) % 8 for place in range(20)], {7: "cook", 12: "media"}, per_shard=6, name="a")
    return [first, write([2] * 9, name="b"), write([3] * 2, name="c")]


def nested(folders: list[str]) -> Blend:
    a, b, c = folders
    inner = Blend(of=(Leaf(path=b, weight=2), Leaf(path=c)), weight=1)
    return Blend(of=(Leaf(path=a, weight=3), inner, Leaf(path=a, name="again")))


def epochised(folders: list[str]) -> Blend:
    a, b, c = folders
    inner = Blend(kind="epochized", of=(Leaf(path=b), Leaf(path=c, repetitions=2)), repetitions=2)
    return Blend(kind="epochized", of=(Leaf(path=a, repetitions=0.5), inner))


def feed_of(blend: Blend, **settings: Any) -> Any:
    loader = LoaderConfig(min_lane_samples=1, **settings)
    return make_feed(DataConfig(source=SourceConfig(blend=blend), loader=loader), AuxLibrary())


def test_shares_per_lane(folders: list[str]) -> None:
    feed = feed_of(nested(folders), num_lanes=8)
    ends = [20, 29, 31, 51]
    shares = [Fraction(3, 5), Fraction(2, 15), Fraction(1, 15), Fraction(1, 5)]
    for lane in range(8):
        counts = [0] * 4
        for draw, number in zip(range(200), feed.samples_from(lane, 0), strict=False):
            assert number == feed.sample_of(lane, draw)
            counts[next(leaf for leaf, end in enumerate(ends) if number < end)] += 1
            assert all(abs(count - share * (draw + 1)) < 1 for count, share in zip(counts, shares, strict=True))


def test_each_leaf_comes_whole_before_it_comes_again(folders: list[str]) -> None:
    feed = feed_of(nested(folders), num_lanes=8)
    draws = [(feed.sample_of(lane, draw), feed.epoch_of(lane, draw)) for draw in range(60) for lane in range(8)]
    for first, end in ((0, 20), (20, 29), (29, 31), (31, 51)):
        counts = Counter(number for number, _ in draws if first <= number < end)
        assert counts.keys() == set(range(first, end))
        assert max(counts.values()) - min(counts.values()) <= 2  # lanes are not quite equally far
    assert len(set(draws)) == len(draws)  # no sample twice in one epoch of its leaf


def test_the_same_leaf_twice_gives_independent_streams(folders: list[str]) -> None:
    a = folders[0]
    feed = feed_of(Blend(of=(Leaf(path=a), Leaf(path=a))), num_lanes=1)
    numbers = list(islice(feed.samples_from(0, 0), 40))
    first, second = [n for n in numbers if n < 20], [n - 20 for n in numbers if n >= 20]
    assert sorted(first) == sorted(second) == list(range(20))
    assert first != second
    assert sum(one == other for one, other in zip(first, second, strict=True)) < 8


@settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.lists(st.sampled_from([0.5, 1, 1.5, 2, 2.7]), min_size=3, max_size=3),
    st.sampled_from([1, 4, 12]),
    st.booleans(),
)
def test_epochs_are_exact(folders: list[str], repetitions: list[float], num_lanes: int, shuffle: bool) -> None:
    sizes = (20, 9, 2)
    leaves = tuple(Leaf(path=path, repetitions=r) for path, r in zip(folders, repetitions, strict=True))
    source = SourceConfig(blend=Blend(kind="epochized", of=leaves), shuffle=shuffle)
    loader = LoaderConfig(num_lanes=num_lanes, min_lane_samples=1, layout="padded")
    feed = make_feed(DataConfig(source=source, loader=loader), AuxLibrary())
    total = Counter[int]()
    for epoch in range(3):
        counts = Counter(
            feed.sample_of(lane, draw)
            for lane in range(feed.num_lanes)
            for draw in range(epoch * feed.epoch_length(lane), (epoch + 1) * feed.epoch_length(lane))
        )
        total += counts
        first = 0
        for size, share in zip(sizes, repetitions, strict=True):
            drawn = int(size * Fraction(str(share)))
            own = [total[number] for number in range(first, first + size)]
            assert sum(counts[number] for number in range(first, first + size)) == drawn
            assert set(own) <= {drawn * (epoch + 1) // size, -(-drawn * (epoch + 1) // size)}  # what is left goes on
            first += size


@pytest.mark.parametrize(
    ("layout", "lanes"), [(LAYOUTS[0], LANES[1]), (LAYOUTS[1], LANES[0])], ids=["packed", "padded"]
)
@pytest.mark.parametrize("blend", [nested, epochised])
def test_any_number_of_ranks_and_every_step_of_a_resume(
    folders: list[str],
    encoder_class: Any,
    build_ranks: Fixture,
    interleave: Fixture,
    blend: Any,
    layout: Any,
    lanes: Any,
) -> None:
    settings = {"shuffle_block": 2, "epochs": 2 if blend is epochised else None, **layout, **lanes}
    source, total = blend(folders), 24
    [single] = build_ranks(source, encoder_class(), **settings)
    batches = list(islice(single, None if blend is epochised else total))
    if blend is epochised:  # a half, two and four times per epoch, two epochs of it; two samples of the first are bad
        counts = {name: single.metrics()[f"samples/{name}"] for name in "abc"}
        assert counts == {"a": 18, "b": 36, "c": 16}
    [loader] = build_ranks(source, encoder_class(), **settings)
    stream = iter(loader)
    for step in range(0, len(batches) + 1, 5):
        state = json.loads(json.dumps(loader.state_dict()))
        dp_size = (2, 4, 1, 8)[step // 5 % 4]
        ranks = build_ranks(source, encoder_class(), dp_size, **settings)
        for rank in ranks:
            rank.load_state_dict(state)
        count = None if blend is epochised else (total - step) // dp_size
        rest = interleave(*(list(islice(rank, count)) for rank in ranks))
        expected = interleave(batches[step:])
        assert rest == (expected if blend is epochised else expected[: len(rest)])
        list(islice(stream, 5))


def test_workers(folders: list[str], encoder_class: Any, view: Fixture) -> None:
    settings = {**LANES[1], **LAYOUTS[0]}
    single = build_loader(nested(folders), encoder_class(), **settings)
    reference = [view(batch) for batch in islice(single, 30)]
    for num_workers in (1, 2):
        loader = build_loader(nested(folders), encoder_class(), num_workers=num_workers, **settings)
        assert [view(batch) for batch in islice(loader, 30)] == reference
    for blend in (nested(folders), epochised(folders)):  # for workers that are spawned
        feed = feed_of(blend, num_lanes=2)
        again = pickle.loads(pickle.dumps(feed))
        assert list(islice(again.samples_from(1, 5), 30)) == list(islice(feed.samples_from(1, 5), 30))
        assert again.read(30) == feed.read(30)


def test_a_state_of_another_blend_is_refused(folders: list[str], encoder_class: Any) -> None:
    def loader(weight: float, **changed: Any) -> Any:
        leaves = (Leaf(path=folders[0], weight=weight), Leaf(path=folders[1], **changed))
        return build_loader(Blend(of=leaves), encoder_class())

    state = loader(3).state_dict()
    loader(3).load_state_dict(state)
    with pytest.raises(StateError, match=r"weighted blend of a 1/2, b 1/2 .*saved with .*blend of a 3/4, b 1/4"):
        loader(1).load_state_dict(state)
    for changed in ({"subset": (0, 8)}, {"subflavors": {"k": 1}}):
        with pytest.raises(StateError, match="dataset is"):
            loader(3, **changed).load_state_dict(state)


def test_subflavors_and_counters(folders: list[str], encoder_class: Any) -> None:
    class Cooking(encoder_class):
        def encode_sample(self, raw: Any) -> Any:
            assert raw["__subflavors__"] == {"a": {"kind": "chart"}, "b": {}}[raw["__dataset__"]]
            return super().encode_sample(raw)

    blend = Blend(of=(Leaf(path=folders[0], weight=2, subflavors={"kind": "chart"}), Leaf(path=folders[1])))
    for layout in LAYOUTS:
        loader = build_loader(blend, Cooking(), **layout)
        total = {name: Counter[str]() for name in ("a", "b")}
        for batch in islice(loader, 20):
            for name, key in (("samples", "source_sample_num"), ("input_tokens", "num_input_tokens")):
                assert sum(counts[name] for counts in batch["source_counts"].values()) == batch[key]
            loss = sum(counts["loss_tokens"] for counts in batch["source_counts"].values())
            assert loss == batch["num_loss_tokens"]
            for leaf, counts in batch["source_counts"].items():
                total[leaf].update(counts)
        metrics = loader.metrics()
        assert all(metrics[f"{name}/{leaf}"] == total[leaf][name] for leaf in total for name in total[leaf])
        assert total["b"]["input_tokens"] == 2 * total["b"]["samples"] > 0


def test_seeds_and_aux_datasets_are_those_of_the_leaf(folders: list[str], encoder_class: Any) -> None:
    seen: dict[tuple[str, str], int] = {}

    class Cooking(encoder_class):
        def encode_sample(self, raw: Any) -> Any:
            assert ("__aux__" in raw and raw["__aux__"].claims("media/0001.json")) == (raw["__dataset__"] == "b")
            seen.setdefault((raw["__dataset__"], raw["__key__"]), raw["__seed__"])
            return super().encode_sample(raw)

    b = folders[1]
    blend = Blend(kind="epochized", of=(Leaf(path=b, aux={"media": folders[2]}), Leaf(path=b)))
    list(build_loader(blend, Cooking(), epochs=1))
    assert len(seen) == len(set(seen.values())) == 18  # a dataset that comes twice is not augmented alike


def test_a_subset_is_all_that_comes(folders: list[str], encoder_class: Any) -> None:
    blend = Blend(
        kind="epochized", of=(Leaf(path=folders[0], subset=(2, 6)), Leaf(path=folders[1], subset=("50%", "end")))
    )
    keys = [key for batch in build_loader(blend, encoder_class(), epochs=1) for key in batch["sample_keys"]]
    assert sorted(keys) == sorted(["0002", "0003", "0004", "0005", "0004", "0005", "0006", "0007", "0008"])


def test_what_a_blend_cannot_be(folders: list[str], encoder_class: Any, tmp_path: Any) -> None:
    a = folders[0]
    bad: list[tuple[Any, dict[str, Any], str]] = [
        (nested(folders), {"epochs": 1}, "a weighted blend has no epochs, but epochs=1"),
        (nested(folders), {"index_dir": "x"}, "index_dir would mean nothing beside a blend: state it per leaf"),
        (Blend(of=(Leaf(path=a, subset=(0, 99)),)), {}, r"leaf 'a' of the blend: subset 0..99 is not in .* 20 samples"),
        (Blend(of=(Leaf(path=a, subset=("0%", "1%")),)), {}, "leaf 'a' of the blend gives no sample"),
        (Blend(kind="epochized", of=(Leaf(path=a, repetitions=0.01),)), {}, "gives no sample"),
        (Blend(of=(Leaf(path=a, split_part="x"),)), {}, "leaf 'a' of the blend: .* was not prepared by Energon"),
    ]
    for source, keywords, message in bad:
        with pytest.raises(ConfigError, match=message):
            build_loader(source, encoder_class(), **keywords)
    with pytest.raises(ConfigError, match="give a Blend, alone"):
        SourceConfig(path=a, blend=nested(folders))
