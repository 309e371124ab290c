"""balance="cost": packs of all lanes in an order of even steps, the same on any ranks, resumable at every batch."""

from __future__ import annotations

import json
import multiprocessing
from collections import Counter
from collections.abc import Callable
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch.distributed as dist

from packloom import merge_states
from packloom.errors import ConfigError, TooManyErrors
from packloom.loader import build_loader
from packloom.packing.balance import imbalance
from packloom.packing.cost import StepCost

Fixture = Callable[..., Any]

SIZES = [1 + (place * 5) % 8 for place in range(60)]
LANES = {"num_lanes": 4, "min_lane_samples": 10, "shuffle_block": 2}
BALANCE = {"balance": "cost", "balance_window": 8, "cost_attention": 0.1}


def _keys(sequence: list[Any]) -> Counter[str]:
    return Counter(key for keys, _ in sequence for key in keys)


@pytest.mark.parametrize("lanes", [LANES, {}], ids=["lanes", "one"])
def test_any_number_of_ranks_and_workers(
    write: Fixture, encoder_class: Any, build_ranks: Fixture, interleave: Fixture, lanes: Any
) -> None:
    path = write(SIZES, {7: "cook", 30: "media"}, per_shard=11)
    settings = {"epochs": 2, **lanes, **BALANCE}
    reference = interleave(list(*build_ranks(path, encoder_class(), **settings)))
    assert _keys(reference) == {f"{place:04d}": 2 for place in range(60) if place not in (7, 30)}
    for dp_size, num_workers in ((2, 0), (5, 0), (2, 2))[: 3 if lanes else 2]:
        ranks = build_ranks(path, encoder_class(), dp_size, num_workers=num_workers, **settings)
        assert interleave(*map(list, ranks)) == reference
        records = Counter(record.key for loader in ranks for record in loader.skip_records)
        assert records == {"0007": 2, "0030": 2}


def test_the_packs_are_those_without_balance(write: Fixture, encoder_class: Any, view: Fixture) -> None:
    path = write(SIZES)
    runs = [
        [view(batch)[0] for batch in build_loader(path, encoder_class(), epochs=1, **LANES, **settings)]
        for settings in ({}, BALANCE)
    ]
    assert runs[0] != runs[1]
    assert sorted(runs[0]) == sorted(runs[1])


def test_steps_are_even(write: Fixture, encoder_class: Any) -> None:
    generator = np.random.default_rng(0)
    sizes = np.clip(generator.lognormal(2.4, 0.9, 1500), 1, 64).astype(int).tolist()
    settings = {"epochs": 1, "num_lanes": 8, "min_lane_samples": 64, "balance_window": 128, "open_packs": 4}
    cost = StepCost(attention=0.5 / 64)  # half of the linear term where one sample fills a pack
    loader = build_loader(
        write(sizes), encoder_class(max_length=64), balance="cost", cost_attention=cost.attention, **settings
    )
    lengths = [np.diff(batch["cu_seqlens_q"].numpy()) for batch in loader]
    costs = np.array([cost.of(each, np.zeros_like(each)).sum() for each in lengths])
    assert imbalance(generator.permutation(costs), 8) > 1.1
    assert imbalance(costs, 8) < 1.03


def test_resume_at_every_batch_on_another_cluster(
    write: Fixture, encoder_class: Any, build_ranks: Fixture, interleave: Fixture
) -> None:
    path = write(SIZES[:30], {7: "cook"})
    settings = {"epochs": 1, **LANES, **BALANCE}
    reference = interleave(list(*build_ranks(path, encoder_class(), **settings)))
    for stop in range(1, len(reference) // 2 + 1):
        ranks = build_ranks(path, encoder_class(), 2, **settings)
        before = interleave(*[list(islice(loader, stop)) for loader in ranks])
        state = json.loads(json.dumps(merge_states([loader.state_dict() for loader in ranks])))
        for dp_size in (1, 3) if stop == 2 else (2 - stop % 2,):
            resumed = build_ranks(path, encoder_class(), dp_size, **settings)
            for loader in resumed:
                loader.load_state_dict(state)
            assert before + interleave(*map(list, resumed)) == reference


def test_the_next_loop_goes_on_behind_a_break_and_then_with_the_next_epoch(
    write: Fixture, encoder_class: Any, view: Fixture
) -> None:
    path = write(SIZES, {7: "cook"})
    settings = {**LANES, **BALANCE}
    whole = [view(batch) for batch in build_loader(path, encoder_class(), epochs=1, **settings)]
    for counts, num_workers in (((3, 1, 2), 0), ((3,), 1)):
        loader = build_loader(path, encoder_class(), epochs=1, num_workers=num_workers, **settings)
        parts = [view(batch) for count in counts for batch in islice(loader, count)]
        assert [*parts, *(view(batch) for batch in loader)] == whole
        assert [record.key for record in loader.skip_records] == ["0007"]
        again = [view(batch) for batch in loader]
        assert _keys(again) == _keys(whole)
        assert again != whole


def test_an_endless_run(write: Fixture, encoder_class: Any, build_ranks: Fixture, interleave: Fixture) -> None:
    path = write(SIZES, {30: "media"})
    settings = {**LANES, **BALANCE}
    reference = interleave(list(islice(*build_ranks(path, encoder_class(), **settings), 60)))
    ranks = build_ranks(path, encoder_class(), 3, **settings)
    assert interleave(*(list(islice(loader, 20)) for loader in ranks)) == reference
    bad = build_loader(write([9, 9], name="bad"), encoder_class(max_length=None), pack_length=8, **BALANCE)
    with pytest.raises(TooManyErrors):
        next(iter(bad))
    assert {record.key for record in bad.skip_records} == {"0000", "0001"}


def test_the_end_drops_what_makes_no_step(write: Fixture, encoder_class: Any, build_ranks: Fixture) -> None:
    path = write([8] * 10)
    settings = {"epochs": 1, "tail": "drop", **BALANCE}
    assert [len(list(loader)) for loader in build_ranks(path, encoder_class(), 4, **settings)] == [2, 2, 2, 2]
    with pytest.raises(ConfigError, match="not one batch"):
        list(build_ranks(write([8], name="one"), encoder_class(), 4, **settings)[0])


def test_settings_that_cannot_be_balanced(write: Fixture, encoder_class: Any) -> None:
    for settings, message in (
        ({"tail": "wrap"}, "tail='pad' or 'drop'"),
        ({"layout": "padded"}, "layout='packed'"),
        ({"cost_vision": -1.0}, "negative"),
    ):
        with pytest.raises(ConfigError, match=message):
            build_loader(write(SIZES, name=str(settings)), encoder_class(), epochs=1, **{**BALANCE, **settings})
    with pytest.raises(ConfigError, match="packloom index"):
        build_loader(write(SIZES, indexed=False, name="bare"), encoder_class(), **BALANCE)


def _gloo_rank(rank: int, path: str, encoder: Any, folder: str, settings: dict[str, Any]) -> None:
    dist.init_process_group("gloo", init_method=f"file://{folder}/rendezvous", rank=rank, world_size=2)
    try:
        loader = build_loader(path, encoder, dp_rank=rank, dp_size=2, **settings)
        batches = [[batch["sample_keys"], batch["input_ids"].flatten().tolist()] for batch in loader]
        told = {"batches": batches, "encoded": encoder.calls["encode"], "state": loader.state_dict()}
        (Path(folder) / f"{rank}.json").write_text(json.dumps(told))
    finally:
        dist.destroy_process_group()


def test_two_processes_give_the_sequence_of_one(write: Fixture, encoder_class: Any, tmp_path: Path) -> None:
    path = write(SIZES, {7: "cook"})
    settings = {"epochs": 1, **LANES, **BALANCE}
    single = [
        [b["sample_keys"], b["input_ids"].flatten().tolist()] for b in build_loader(path, encoder_class(), **settings)
    ]
    context = multiprocessing.get_context("fork")
    processes = [
        context.Process(target=_gloo_rank, args=(rank, path, encoder_class(), str(tmp_path), settings))
        for rank in (0, 1)
    ]
    for process in processes:
        process.start()
    for process in processes:
        process.join(60)
        assert process.exitcode == 0
    ranks = [json.loads((tmp_path / f"{rank}.json").read_text()) for rank in (0, 1)]
    joined = [batch for step in zip(*(rank["batches"] for rank in ranks), strict=True) for batch in step if batch[0]]
    assert joined == single
    # each measures its own lanes and makes its own batches: no rank encodes the dataset twice
    assert max(rank["encoded"] for rank in ranks) < 1.5 * len(SIZES)
