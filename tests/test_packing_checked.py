"""The checker: a packer that loses, doubles, invents, overfills or forgets is stopped, and the index named."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from packloom.errors import PackingError
from packloom.packing import BestFitPacker, CheckedPacker, Cost, PackLimits

LIMITS = PackLimits(10, 4)


class Scripted:
    """Returns the packs that it was told to: one entry per push, the last one at the end."""

    def __init__(self, *answers: list[list[int]]) -> None:
        self._answers = list(answers)

    def push(self, index: int, cost: Cost) -> list[list[int]]:
        return self._answers.pop(0)

    def finish(self) -> list[list[int]]:
        return self._answers.pop(0)

    def state_dict(self) -> dict[str, Any]:
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        pass


def _run(answers: list[list[list[int]]], *, tokens: int = 4, patches: int = 0, max_wait: int | None = None) -> None:
    packer = CheckedPacker(Scripted(*answers), LIMITS, max_wait=max_wait)
    for index in range(len(answers) - 1):
        packer.push(index, Cost(tokens, patches))
    packer.finish()


def test_a_right_packer_passes_and_is_counted() -> None:
    packer = CheckedPacker(Scripted([], [], [[0, 2]], [[1]], [], [[4, 3]]), LIMITS)
    assert (packer.stats.num_packs, packer.stats.fill_mean, packer.stats.fill_min) == (0, 0.0, 0.0)
    pushed = [packer.push(index, Cost(tokens)) for index, tokens in enumerate([5, 9, 3, 2, 1])]
    assert pushed == [[], [], [[0, 2]], [[1]], []]
    assert packer.waiting == (3, 4)
    assert packer.finish() == [[4, 3]]
    stats = packer.stats
    assert (stats.num_packs, stats.num_samples, stats.num_tokens, stats.waiting_max) == (3, 5, 20, 2)
    assert (stats.fill_mean, stats.fill_min) == (20 / 30, 0.8)
    assert packer.waiting == ()


@pytest.mark.parametrize(
    ("answers", "message"),
    [
        ([[], []], "lost 1 of the pushed indices, the first is 0"),
        ([[[0]], [], []], "lost 1 .* the first is 1"),
        ([[[0]], [[0, 1]], []], "index 0, which was never pushed or has already left"),
        ([[[0, 0]], []], "index 0, which was never pushed or has already left"),
        ([[[7]], []], "index 7, which was never pushed"),
        ([[], [], [[0, 1, 2]], []], "index 2 overfills its pack: 12 tokens"),
        ([[[]], []], "empty pack"),
    ],
)
def test_breaches(answers: list[list[list[int]]], message: str) -> None:
    with pytest.raises(PackingError, match=message):
        _run(answers)


def test_the_patch_limit_is_checked() -> None:
    with pytest.raises(PackingError, match="index 1 overfills its pack: 2 tokens and 6 patches"):
        _run([[], [[0, 1]], []], tokens=1, patches=3)


def test_a_packer_that_forgets_a_sample() -> None:
    answers = [[], [[1]], [[2]], [[3]], [[0]]]
    _run(answers, max_wait=3)
    with pytest.raises(PackingError, match="index 0 still waits after 3 further samples, max_wait is 2"):
        _run(answers, max_wait=2)


def test_a_cost_that_fits_no_pack_never_reaches_the_packer() -> None:
    with pytest.raises(PackingError, match=r"index 0 costs 11 tokens .* 1\.\.10 tokens"):
        _run([[[0]], []], tokens=11)


@given(costs=st.lists(st.builds(Cost, st.integers(1, 10), st.integers(0, 4)), max_size=40), cut=st.integers(0, 40))
def test_a_state_carries_packer_check_and_counts_on(costs: list[Cost], cut: int) -> None:
    def fresh() -> CheckedPacker:
        return CheckedPacker(BestFitPacker(LIMITS, buffer_size=3, max_wait=6), LIMITS, max_wait=6)

    whole, first, second = fresh(), fresh(), fresh()
    packs = [pack for index, cost in enumerate(costs) for pack in whole.push(index, cost)]
    resumed = [pack for index, cost in enumerate(costs[:cut]) for pack in first.push(index, cost)]
    second.load_state_dict(json.loads(json.dumps(first.state_dict())))
    assert second.waiting == first.waiting
    resumed += [pack for index, cost in list(enumerate(costs))[cut:] for pack in second.push(index, cost)]
    assert resumed == packs
    assert (second.waiting, second.stats) == (whole.waiting, whole.stats)
    assert second.finish() == whole.finish()
    assert second.stats == whole.stats
    assert whole.stats.waiting_max <= 6


def test_a_packer_that_loses_a_sample_over_a_resume_is_caught() -> None:
    first = CheckedPacker(BestFitPacker(LIMITS), LIMITS)
    first.push(0, Cost(3))
    second = CheckedPacker(Scripted([]), LIMITS)
    second.load_state_dict(first.state_dict())
    with pytest.raises(PackingError, match="lost 1 of the pushed indices, the first is 0"):
        second.finish()
