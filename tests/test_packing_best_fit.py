"""The built-in packer against brute force: conservation, limits, waiting, next-fit, resume."""

from __future__ import annotations

import json
from itertools import combinations

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from packloom.errors import ConfigError, PackingError
from packloom.packing import BestFitPacker, Cost, PackLimits, aligned
from packloom.packing.best_fit import best_subset
from packloom.packing.waiting import Waiting

LIMITS = PackLimits(20, 12)
COSTS = st.builds(Cost, st.integers(1, 20), st.integers(0, 12))
STREAMS = st.lists(COSTS, max_size=60)
SETTINGS = st.fixed_dictionaries(
    {"open_packs": st.integers(1, 4), "buffer_size": st.integers(0, 8), "max_wait": st.integers(1, 40)}
)


def _timed_packs(packer: BestFitPacker, stream: list[Cost]) -> list[tuple[int, list[int]]]:
    """Every pack with the number of samples that had been pushed when it came out."""
    packs = [(number + 1, pack) for number, cost in enumerate(stream) for pack in packer.push(number, cost)]
    return packs + [(len(stream), pack) for pack in packer.finish()]


def _next_fit(stream: list[Cost], limits: PackLimits, max_wait: int) -> int:
    """Packs that next-fit needs when a pack leaves once its first sample has seen ``max_wait`` later ones."""
    packs, held = 0, list[tuple[int, Cost]]()
    for number, cost in enumerate(stream):
        tokens = cost.tokens + sum(other.tokens for _, other in held)
        patches = cost.patches + sum(other.patches for _, other in held)
        if held and (tokens > limits.tokens or patches > (limits.patches or patches)):
            packs, held = packs + 1, []
        held.append((number, cost))
        if number - held[0][0] >= max_wait:
            packs, held = packs + 1, []
    return packs + bool(held)


@given(stream=STREAMS, settings=SETTINGS)
def test_each_index_once_within_both_limits_in_order_of_arrival(stream: list[Cost], settings: dict[str, int]) -> None:
    packs = [pack for _, pack in _timed_packs(BestFitPacker(LIMITS, **settings), stream)]
    assert sorted(index for pack in packs for index in pack) == list(range(len(stream)))
    for pack in packs:
        assert pack == sorted(pack) != []
        assert sum(stream[index].tokens for index in pack) <= 20
        assert sum(stream[index].patches for index in pack) <= 12


@given(stream=STREAMS, settings=SETTINGS)
def test_no_sample_sees_more_than_max_wait_later_ones(stream: list[Cost], settings: dict[str, int]) -> None:
    for pushed, pack in _timed_packs(BestFitPacker(LIMITS, **settings), stream):
        assert max(pushed - 1 - index for index in pack) <= settings["max_wait"]


@given(stream=STREAMS, settings=SETTINGS)
def test_waiting_is_bounded_by_packs_and_by_samples(stream: list[Cost], settings: dict[str, int]) -> None:
    packer, waiting = BestFitPacker(LIMITS, **settings), set[int]()
    for index, cost in enumerate(stream):
        waiting.add(index)
        waiting.difference_update(*packer.push(index, cost))
        tokens, patches = sum(stream[i].tokens for i in waiting), sum(stream[i].patches for i in waiting)
        assert tokens <= settings["open_packs"] * 20
        assert patches <= settings["open_packs"] * 12
        assert len(waiting) <= settings["buffer_size"] or (tokens <= 20 and patches <= 12)


@given(stream=STREAMS, settings=SETTINGS, limits=st.sampled_from([LIMITS, PackLimits(20)]))
@example(  # the fullest first pack, 1 + 6, would leave three packs; next-fit makes 1 + 5 and 6 + 1 + 3
    stream=[Cost(1), Cost(5), Cost(6), Cost(1), Cost(3)],
    settings={"open_packs": 3, "buffer_size": 4, "max_wait": 2},
    limits=PackLimits(10),
)
def test_never_more_packs_than_next_fit(stream: list[Cost], settings: dict[str, int], limits: PackLimits) -> None:
    packs = _timed_packs(BestFitPacker(limits, **settings), stream)
    assert len(packs) <= _next_fit(stream, limits, settings["max_wait"])


@given(stream=STREAMS, settings=SETTINGS)
def test_a_state_at_every_step_continues_identically(stream: list[Cost], settings: dict[str, int]) -> None:
    whole = BestFitPacker(LIMITS, **settings)
    for index, cost in enumerate(stream):
        state = json.loads(json.dumps(whole.state_dict()))
        resumed = BestFitPacker(LIMITS, **settings)
        resumed.load_state_dict(state)
        assert resumed.state_dict() == state
        assert resumed.push(index, cost) == whole.push(index, cost)
        assert resumed.state_dict() == whole.state_dict()


@given(stream=STREAMS, cut=st.integers(0, 60), settings=SETTINGS)
def test_a_resumed_run_ends_like_the_whole_run(stream: list[Cost], cut: int, settings: dict[str, int]) -> None:
    first = BestFitPacker(LIMITS, **settings)
    head = [pack for index, cost in enumerate(stream[:cut]) for pack in first.push(index, cost)]
    second = BestFitPacker(LIMITS, **settings)
    second.load_state_dict(json.loads(json.dumps(first.state_dict())))
    tail = [pack for index, cost in list(enumerate(stream))[cut:] for pack in second.push(index, cost)]
    whole = [pack for _, pack in _timed_packs(BestFitPacker(LIMITS, **settings), stream)]
    assert head + tail + second.finish() == whole


def test_finish_starts_afresh() -> None:
    packer, stream = BestFitPacker(PackLimits(10), buffer_size=2), [Cost(n) for n in (4, 7, 3, 6, 5, 2, 9)]
    assert _timed_packs(packer, stream) == _timed_packs(packer, stream) != []


@given(
    batch=st.lists(st.tuples(st.integers(1, 9), st.integers(0, 5)), max_size=8),
    tokens=st.integers(1, 20),
    patches=st.none() | st.integers(1, 9),
)
def test_best_subset_is_the_best_of_all_subsets(batch: list[tuple[int, int]], tokens: int, patches: int | None) -> None:
    samples = [Waiting(number, *cost, number) for number, cost in enumerate(batch)]
    chosen = best_subset(samples, [], PackLimits(tokens, patches))
    best = max(
        total
        for size in range(len(batch) + 1)
        for subset in combinations(batch, size)
        if (total := sum(cost[0] for cost in subset)) <= tokens
        and (patches is None or sum(cost[1] for cost in subset) <= patches)
    )
    assert sum(batch[position][0] for position in chosen) == best
    assert patches is None or sum(batch[position][1] for position in chosen) <= patches


def test_the_best_partner_is_found_and_ties_go_to_the_oldest() -> None:
    packer = BestFitPacker(PackLimits(11), buffer_size=4)
    packs = [packer.push(index, Cost(tokens)) for index, tokens in enumerate([6, 3, 4, 9, 4])]
    assert packs == [[], [], [], [], [[0, 2]]]  # 6 + 4 rather than 6 + 3, and the older 4
    assert packer.finish() == [[1, 4], [3]]


def test_a_patch_budget_leaves_room_for_text() -> None:
    packer = BestFitPacker(PackLimits(10, patches=8), buffer_size=2)
    costs = [Cost(5, 6), Cost(5, 6), Cost(5, 0)]
    assert [packer.push(index, cost) for index, cost in enumerate(costs)] == [[], [], [[0, 2]]]


def test_the_oldest_is_forced_out_in_time_with_all_that_fits() -> None:
    packer = BestFitPacker(PackLimits(100), max_wait=2)
    assert [packer.push(index, Cost(10)) for index in range(4)] == [[], [], [[0, 1, 2]], []]


@pytest.mark.parametrize(
    ("cost", "message"),
    [
        (Cost(21), r"index 7 costs 21 tokens .* 1\.\.20 tokens"),
        (Cost(0), "index 7 costs 0 tokens"),
        (Cost(-3), "index 7 costs -3 tokens"),
        (Cost(5, 13), r"5 tokens and 13 patches; .* 0\.\.12 patches"),
        (Cost(5, -1), "-1 patches"),
    ],
)
def test_a_cost_that_fits_no_pack(cost: Cost, message: str) -> None:
    packer = BestFitPacker(LIMITS)
    with pytest.raises(PackingError, match=message):
        packer.push(7, cost)
    assert packer.finish() == []


def test_an_index_that_still_waits_is_refused() -> None:
    packer = BestFitPacker(LIMITS)
    packer.push(7, Cost(1))
    with pytest.raises(PackingError, match="index 7 was pushed again"):
        packer.push(7, Cost(1))


def test_a_state_of_other_settings_is_refused() -> None:
    state = BestFitPacker(PackLimits(20), max_wait=5).state_dict()
    with pytest.raises(ConfigError, match=r"'max_wait': 5.*'max_wait': 6"):
        BestFitPacker(PackLimits(20), max_wait=6).load_state_dict(state)
    with pytest.raises(ConfigError, match=r"'tokens': 20.*'tokens': 30"):
        BestFitPacker(PackLimits(30), max_wait=5).load_state_dict(state)
    with pytest.raises(ConfigError, match="version 0"):
        BestFitPacker(PackLimits(20), max_wait=5).load_state_dict({**state, "version": 0})


@pytest.mark.parametrize("settings", [{"open_packs": 0}, {"buffer_size": -1}, {"max_wait": 0}])
def test_settings_that_cannot_work(settings: dict[str, int]) -> None:
    with pytest.raises(ConfigError, match="must be at least"):
        BestFitPacker(LIMITS, **settings)
    with pytest.raises(ConfigError, match="must be positive"):
        PackLimits(0)


@pytest.mark.parametrize(("tokens", "multiple", "length"), [(5, 1, 5), (5, 4, 8), (8, 4, 8), (1, 16, 16)])
def test_aligned(tokens: int, multiple: int, length: int) -> None:
    assert aligned(tokens, multiple) == length
