"""Estimated steps against what a loader really gives, whatever the number of ranks."""

from __future__ import annotations

import pytest

from packloom import TaskEncoder, build_loader
from packloom.datasets import write_shards
from packloom.errors import ConfigError
from packloom.models.model_kit import estimate_steps

NUMBER = 60


def raw(number):
    answer = " word" * (1 + number * 7 % 23)
    messages = [{"role": "user", "content": "Go."}, {"role": "assistant", "content": answer}]
    return {"__key__": f"r{number:02}", "json": {"messages": messages}}


@pytest.fixture(scope="module")
def load(processor_dir, tmp_path_factory):
    encoder = TaskEncoder.from_pretrained(processor_dir("qwen2_5_vl"))
    shards = tmp_path_factory.mktemp("shards")
    write_shards(map(raw, range(NUMBER)), shards, samples_per_shard=20)
    return lambda **settings: build_loader(shards, encoder, pack_length=128, **{"epochs": 1, **settings})


@pytest.mark.parametrize("place", [{}, {"dp_rank": 0, "dp_size": 2}, {"dp_rank": 1, "dp_size": 2}])
def test_a_whole_epoch_is_counted_and_a_part_extrapolated(load, place):
    real = sum(1 for _ in load(**place))
    ranks = place.get("dp_size", 1)
    whole = estimate_steps(load(**place), total_samples=NUMBER, dp_size=ranks)
    assert (whole.steps, whole.exact) == (real, True)
    assert estimate_steps(load(**place), total_samples=NUMBER, dp_size=ranks, accumulation=4).steps == -(-real // 4)
    early = estimate_steps(load(**place), total_samples=NUMBER, dp_size=ranks, window=3, tolerance=0.3)
    assert not early.exact
    assert early.batches_seen < real
    assert abs(early.steps - real) <= 0.3 * real


def test_an_endless_loader_ends_here(load):
    with pytest.raises(ConfigError, match=r"goes on, total_samples = 60 on 1 rank.*epochs=1"):
        estimate_steps(load(epochs=None), total_samples=NUMBER)
