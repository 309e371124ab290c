"""A user's plain pack function as a streaming packer."""

from __future__ import annotations

import json
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from packloom.errors import ConfigError, PackingError
from packloom.packing import Cost, PackLimits, WindowPacker

LIMITS = PackLimits(10)
STREAMS = st.lists(st.builds(Cost, st.integers(1, 10)), max_size=60)


def largest_first(costs: Sequence[Cost], limits: PackLimits) -> list[list[int]]:
    """First-fit decreasing; the last pack stays open for the next window."""
    packs: list[list[int]] = []
    for position in sorted(range(len(costs)), key=lambda p: -costs[p].tokens):
        for pack in packs:
            if sum(costs[p].tokens for p in [*pack, position]) <= limits.tokens:
                pack.append(position)
                break
        else:
            packs.append([position])
    return packs[:-1]


def nothing(costs: Sequence[Cost], limits: PackLimits) -> list[list[int]]:
    return []


def test_the_function_sees_the_window_and_what_it_left_out() -> None:
    seen = []

    def first_two(costs: Sequence[Cost], limits: PackLimits) -> list[list[int]]:
        seen.append(([cost.tokens for cost in costs], limits))
        return [[1, 0]]

    packer = WindowPacker(first_two, LIMITS, window=3)
    packs = [packer.push(10 + number, Cost(tokens)) for number, tokens in enumerate([1, 2, 3, 4, 5, 6])]
    assert seen == [([1, 2, 3], LIMITS), ([3, 4, 5, 6], LIMITS)]
    assert packs == [[], [], [[10, 11]], [], [], [[12, 13]]]  # order of arrival, though asked as [1, 0]
    assert packer.finish() == [[14, 15]]


@given(stream=STREAMS, window=st.integers(1, 9), slack=st.integers(0, 20))
@pytest.mark.parametrize("function", [largest_first, nothing])
def test_each_index_once_in_limits_and_in_time(function: object, stream: list[Cost], window: int, slack: int) -> None:
    packer = WindowPacker(function, LIMITS, window=window, max_wait=window + slack)
    packs = [(number + 1, pack) for number, cost in enumerate(stream) for pack in packer.push(number, cost)]
    packs += [(len(stream), pack) for pack in packer.finish()]
    assert sorted(index for _, pack in packs for index in pack) == list(range(len(stream)))
    for pushed, pack in packs:
        assert pack == sorted(pack)
        assert sum(stream[index].tokens for index in pack) <= 10
        assert max(pushed - 1 - index for index in pack) <= window + slack


@given(stream=STREAMS, window=st.integers(1, 9))
def test_a_state_at_every_step_continues_identically(stream: list[Cost], window: int) -> None:
    whole = WindowPacker(largest_first, LIMITS, window=window, max_wait=20)
    for index, cost in enumerate(stream):
        resumed = WindowPacker(largest_first, LIMITS, window=window, max_wait=20)
        resumed.load_state_dict(json.loads(json.dumps(whole.state_dict())))
        assert resumed.push(index, cost) == whole.push(index, cost)
        assert resumed.state_dict() == whole.state_dict()


def test_finish_without_samples_does_not_call_the_function() -> None:
    def fail(costs: Sequence[Cost], limits: PackLimits) -> list[list[int]]:
        raise AssertionError

    assert WindowPacker(fail, LIMITS).finish() == []


@pytest.mark.parametrize("groups", [[[0], [0]], [[0, 0]], [[5]], [[-1]]])
def test_positions_that_are_not_in_the_window(groups: list[list[int]]) -> None:
    packer = WindowPacker(lambda costs, limits: groups, LIMITS, window=2)
    packer.push(0, Cost(1))
    with pytest.raises(PackingError, match=f"position {groups[-1][-1]} twice, or"):
        packer.push(1, Cost(1))


@pytest.mark.parametrize(("window", "max_wait"), [(0, 5), (6, 5)])
def test_a_window_longer_than_the_wait(window: int, max_wait: int) -> None:
    with pytest.raises(ConfigError, match=f"1..max_wait={max_wait} samples, got {window}"):
        WindowPacker(nothing, LIMITS, window=window, max_wait=max_wait)
