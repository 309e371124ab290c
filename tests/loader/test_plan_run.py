"""Plans of packs: a planned run gives each sample once, in the planned packs, on any ranks, and resumes anywhere."""

from __future__ import annotations

import json
import logging
from collections import Counter
from collections.abc import Callable
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from packloom import Blend, Leaf, merge_states
from packloom.errors import CapabilityError, ConfigError, PlanError, ShardError, StateError
from packloom.loader import build_loader, make_plan

pytest.importorskip("pyarrow")
pq = pytest.importorskip("pyarrow.parquet")

Fixture = Callable[..., Any]

SIZES = [1 + (place * 5) % 8 for place in range(60)]


def _keys(sequence: list[Any]) -> Counter[str]:
    return Counter(key for keys, _ in sequence for key in keys)


@pytest.fixture
def planned(write: Fixture, encoder_class: Any, tmp_path: Path) -> Callable[..., tuple[str, str, Any]]:
    """``planned(sizes, faults, **settings)``: (shards, plan, report)."""

    def made(sizes: Any = SIZES, faults: Any = None, *, media: bool = False, **settings: Any) -> tuple[str, str, Any]:
        path = write(sizes, faults, per_shard=11, media=media)
        report = make_plan(path, encoder_class(), tmp_path / "plan.parquet", **settings)
        return path, str(tmp_path / "plan.parquet"), report

    return made


def test_the_rows_of_a_plan(planned: Fixture) -> None:
    _, plan, report = planned([8, 3, 5, 4, 4, 9, 2], {1: "cook"}, epochs=1)
    table = pq.read_table(plan).to_pylist()
    packs = [{row["sample"] for row in table if row["pack"] == number} for number in range(3)]
    assert sorted(map(sorted, packs)) == [[0], [2, 6], [3, 4]]
    assert [row["sample"] for row in table if row["pack"] == -1] == [1, 5]  # refused, and too long
    assert [row["tokens"] for row in sorted(table, key=lambda row: row["sample"])] == [8, 0, 5, 4, 4, 9, 2]
    assert report.left_out == {"cook.image_count": 1, "pack.too_long": 1}
    assert (report.num_packs, report.num_measured) == ((3,), 7)
    assert report.fill == 23 / 24
    assert [(record.key, record.reason) for record in report.faults] == [("0001", "no image")]


@pytest.mark.parametrize("tail", ["pad", "wrap", "drop"])
def test_any_number_of_ranks_and_workers(
    planned: Fixture, encoder_class: Any, build_ranks: Fixture, interleave: Fixture, tail: str
) -> None:
    path, plan, report = planned(faults={7: "cook", 30: "media"}, epochs=2, balance_ranks=6)
    settings = {"epochs": 2, "plan": plan, "tail": tail}
    reference = interleave(list(*build_ranks(path, encoder_class(), **settings)))
    assert len(reference) == sum(report.num_packs)
    assert _keys(reference) == {f"{place:04d}": 2 for place in range(60) if place not in (7, 30)}
    for dp_size, num_workers in ((5, 0), (7, 0), *([(2, 2)] if tail == "pad" else [])):
        ranks = build_ranks(path, encoder_class(), dp_size, num_workers=num_workers, **settings)
        sequence = interleave(*map(list, ranks))
        whole = len(reference) // dp_size * dp_size
        assert sequence[:whole] == reference[:whole]
        if tail == "pad":
            assert sequence == reference
        assert (
            len(sequence)
            == {"pad": len(reference), "drop": whole, "wrap": -(-len(reference) // dp_size * dp_size)}[tail]
            or tail == "wrap"
        )
        assert Counter(record.key for loader in ranks for record in loader.skip_records)["0030"] >= 2 * (tail != "drop")


def test_same_samples_as_without_a_plan(planned: Fixture, encoder_class: Any, view: Fixture) -> None:
    path, plan, _ = planned(faults={7: "cook"}, media=True)
    with_plan = [view(batch) for batch in build_loader(path, encoder_class(), epochs=1, plan=plan)]
    without = [view(batch) for batch in build_loader(path, encoder_class(), epochs=1)]
    assert _keys(with_plan) == _keys(without)
    assert Counter(token for _, numbers in with_plan for token in numbers) == Counter(
        token for _, numbers in without for token in numbers
    )
    assert len(with_plan) <= len(without)


def test_epochs_are_packed_and_ordered_anew_and_go_on_beyond_the_plan(
    planned: Fixture, encoder_class: Any, view: Fixture
) -> None:
    path, plan, report = planned([2, 3] * 20, epochs=2)
    each = report.num_packs[0]
    loader = build_loader(path, encoder_class(), plan=plan)  # without end
    run = [view(batch)[0] for batch in islice(loader, 3 * each)]
    epochs = [run[:each], run[each : 2 * each], run[2 * each :]]
    assert all(Counter(key for keys in epoch for key in keys) == {f"{n:04d}": 1 for n in range(40)} for epoch in epochs)
    assert set(epochs[0]) != set(epochs[1])
    assert set(epochs[0]) == set(epochs[2])  # the same packs
    assert epochs[0] != epochs[2]  # in another order
    finite = build_loader(path, encoder_class(), plan=plan, epochs=1)
    assert [{view(batch)[0] for batch in finite} for _ in range(2)] == list(map(set, epochs[:2]))
    assert make_plan(path, encoder_class(), Path(plan).with_name("again.parquet"), epochs=2).num_measured == 0
    again, first = (pq.read_table(Path(plan).with_name(name)) for name in ("again.parquet", "plan.parquet"))
    assert again.equals(first)


def test_resume_at_every_batch_on_another_cluster(
    planned: Fixture, encoder_class: Any, build_ranks: Fixture, interleave: Fixture
) -> None:
    path, plan, report = planned([1 + (place * 3) % 8 for place in range(24)])
    settings = {"epochs": 1, "plan": plan}
    reference = interleave(list(*build_ranks(path, encoder_class(), **settings)))
    for stop in range(1, report.num_packs[0] // 2 + 1):
        ranks = build_ranks(path, encoder_class(), 2, **settings)
        before = interleave(*[list(islice(loader, stop)) for loader in ranks])
        state = json.loads(json.dumps(merge_states([loader.state_dict() for loader in ranks])))
        assert state["lanes"]["0"]["slots"] == 2 * stop
        for dp_size in (1, 3):
            resumed = build_ranks(path, encoder_class(), dp_size, num_workers=0, **settings)
            for loader in resumed:
                loader.load_state_dict(state)
            assert before + interleave(*map(list, resumed)) == reference


def test_a_state_belongs_to_its_plan(planned: Fixture, encoder_class: Any) -> None:
    path, plan, _ = planned()
    loader = build_loader(path, encoder_class(), plan=plan, epochs=1)
    next(iter(loader))
    with pytest.raises(StateError, match="packer is 'best_fit', the state was saved with 'plan "):
        build_loader(path, encoder_class(), epochs=1).load_state_dict(loader.state_dict())


def test_nothing_is_decoded_for_a_plan(write: Fixture, encoder_class: Any, tmp_path: Path) -> None:
    class Blind(encoder_class):
        def batch(self, samples: Any) -> Any:
            raise AssertionError("decoded")

    report = make_plan(write(SIZES, media=True), Blind(), tmp_path / "plan.parquet")
    assert sum(report.num_packs) > 0


def test_lengths_are_kept_for_the_same_content_and_encoder(
    write: Fixture, encoder_class: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("packloom.loader.lengths.CHUNK", 16)
    path, plan = write(SIZES), tmp_path / "plan.parquet"
    assert make_plan(path, encoder_class(), plan, num_workers=2).num_measured == 60
    encoder = encoder_class()
    assert make_plan(path, encoder, plan, seed=1).num_measured == 0
    assert encoder.calls["encode"] == 0
    cached = sorted((tmp_path / ".packloom-lengths").rglob("*.parquet"))
    cached[1].write_bytes(b"cut")
    assert make_plan(path, encoder_class(), plan).num_measured == 16
    assert make_plan(path, encoder_class(max_length=9), plan, pack_length=9).num_measured == 60
    assert make_plan(write([*SIZES, 1], name="more"), encoder_class(), plan).num_measured == 61


def test_unreadable_samples_are_looked_at_again(write: Fixture, encoder_class: Any, tmp_path: Path) -> None:
    path, plan = write(SIZES), tmp_path / "plan.parquet"
    [shard] = Path(path).glob("*.tar")
    whole = shard.read_bytes()
    damaged = bytearray(whole)
    damaged[512:514] = b"XX"  # in the first row
    shard.write_bytes(damaged)
    assert make_plan(path, encoder_class(), plan).left_out == {"read.checksum": 1}
    shard.write_bytes(whole)
    report = make_plan(path, encoder_class(), plan)
    assert (report.num_measured, report.left_out) == (60, {})


@pytest.mark.parametrize(
    "limits", [{"segment_multiple": 4}, {"max_patches": 2}, {"segment_multiple": 2, "max_patches": 3}]
)
def test_packs_obey_the_limits_of_the_loader(planned: Fixture, encoder_class: Any, limits: Any) -> None:
    path, plan, report = planned([1 + (place * 3) % 8 for place in range(40)], media=True, pack_length=16, **limits)
    loader = build_loader(path, encoder_class(), plan=plan, epochs=1, pack_length=16, **limits)
    batches = list(loader)  # a pack that is over a limit would be an error
    assert len(batches) == report.num_packs[0]
    assert max(batch["input_ids"].shape[1] for batch in batches) <= 16
    assert max(len(batch["sample_keys"]) for batch in batches) <= limits.get("max_patches", 16)
    assert sum(batch["source_sample_num"] for batch in batches) == 40


@pytest.mark.parametrize(
    ("changed", "named"),
    [
        ({"seed": 1}, "seed is 1, the plan has 0"),
        ({"pack_length": 16}, "pack_length is 16, the plan has 8"),
        ({"segment_multiple": 2}, "segment_multiple is 2, the plan has 1"),
        ({"max_patches": 5}, "max_patches is 5, the plan has None"),
    ],
)
def test_a_plan_for_other_settings_is_refused(planned: Fixture, encoder_class: Any, changed: Any, named: str) -> None:
    path, plan, _ = planned()
    with pytest.raises(PlanError, match=named):
        build_loader(path, encoder_class(), plan=plan, **changed)


def test_a_plan_for_another_dataset_or_encoder_is_refused(
    planned: Fixture, write: Fixture, encoder_class: Any, tmp_path: Path
) -> None:
    path, plan, _ = planned()
    with pytest.raises(PlanError, match="dataset is '"):
        build_loader(write(SIZES[1:], name="other"), encoder_class(), plan=plan)
    with pytest.raises(PlanError, match=r"encoder\.max_length is 7, the plan has 8"):
        build_loader(path, encoder_class(max_length=7), plan=plan, pack_length=8)


def test_lengths_that_changed_behind_the_fingerprint_are_an_error(planned: Fixture, encoder_class: Any) -> None:
    path, plan, _ = planned()

    class Longer(encoder_class):
        def encode_sample(self, raw: Any) -> Any:
            raw = {**raw, "json": raw["json"].replace(b'"n": 1,', b'"n": 2,')}
            return super().encode_sample(raw)

    Longer.__qualname__, Longer.__module__ = encoder_class.__qualname__, encoder_class.__module__
    with pytest.raises(PlanError, match="has 2 tokens and 0 patches, the plan says 1 and 0"):
        list(build_loader(path, Longer(), plan=plan, epochs=1))


def test_settings_that_a_plan_cannot_obey(planned: Fixture, write: Fixture, encoder_class: Any, tmp_path: Path) -> None:
    path, plan, _ = planned()
    for settings, named in (
        ({"layout": "padded"}, "layout='packed'"),
        ({"shuffle": False}, "shuffle=True"),
        ({"packer": lambda costs, limits: [[0]]}, "no packer of your own"),
    ):
        with pytest.raises(ConfigError, match=named):
            build_loader(path, encoder_class(), plan=plan, **settings)
    bare = write(SIZES, indexed=False, name="bare")
    with pytest.raises(ConfigError, match="packloom index"):
        build_loader(bare, encoder_class(), plan=plan)
    with pytest.raises(ShardError, match="packloom index"):
        make_plan(bare, encoder_class(), plan)
    few = write(SIZES[:40], name="few")
    blend = Blend(of=(Leaf(path=path), Leaf(path=few, weight=5)))
    with pytest.raises(ConfigError, match=r"blend_epochized .* for the same shares: shards 1, few 7\.5$"):
        make_plan(blend, encoder_class(), plan)
    concat = Blend(kind="concat", of=(Leaf(path=path), Leaf(path=few)))
    assert make_plan(concat, encoder_class(), plan, epochs=2).num_samples == 100
    with pytest.raises(PlanError, match="no sample fits"):
        make_plan(write([9, 9], name="long"), encoder_class(), plan)


def test_damaged_files(planned: Fixture, encoder_class: Any, tmp_path: Path) -> None:
    path, plan, _ = planned()
    whole = Path(plan).read_bytes()
    for name, data, message in (
        ("cut.parquet", whole[:-20], "cannot be read"),
        ("other.parquet", b"PAR1", "cannot be read"),
        (
            "edited.parquet",
            whole.replace(b'\\"seed\\": 0', b'\\"seed\\": 1').replace(b'"seed": 0', b'"seed": 1'),
            "header of",
        ),
    ):
        (tmp_path / name).write_bytes(data)
        with pytest.raises(PlanError, match=message):
            build_loader(path, encoder_class(), plan=str(tmp_path / name))
    with pytest.raises(PlanError, match="no such file"):
        build_loader(path, encoder_class(), plan=str(tmp_path / "none.parquet"))
    loader = build_loader(path, encoder_class(), plan=plan, epochs=1)
    table = pq.read_table(plan)
    swapped = table.set_column(2, "pack", [np.roll(table["pack"].to_numpy(), 1)])
    pq.write_table(swapped, plan)
    with pytest.raises(PlanError, match="was changed since"):
        next(iter(loader))


def test_a_blend_with_repetitions(write: Fixture, encoder_class: Any, tmp_path: Path, view: Fixture) -> None:
    paths = [write([size] * count, name=name) for name, size, count in (("a", 3, 10), ("b", 5, 6))]
    blend = Blend(kind="epochized", of=(Leaf(path=paths[0]), Leaf(path=paths[1], repetitions=1.5)))
    report = make_plan(blend, encoder_class(), tmp_path / "plan.parquet", epochs=2)
    assert report.num_packs == (10, 10)
    loader = build_loader(blend, encoder_class(), plan=str(tmp_path / "plan.parquet"), epochs=2)
    batches = [view(batch) for batch in loader]
    tokens = Counter(token for _, numbers in batches for token in numbers)
    assert sum(tokens.values()) == 2 * (10 * 3 + 9 * 5)
    assert loader.metrics()["samples/b"] == 18
    assert [len(keys) for keys, _ in batches].count(2) == 18


def test_a_long_absence_of_pyarrow(
    write: Fixture, encoder_class: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(__import__("sys").modules, "pyarrow", None)
    with pytest.raises(CapabilityError, match=r"packloom\[plan\]"):
        make_plan(write(SIZES), encoder_class(), tmp_path / "plan.parquet")


def test_what_is_left_out_is_told(planned: Fixture, encoder_class: Any, caplog: pytest.LogCaptureFixture) -> None:
    path, plan, _ = planned(faults={3: "cook"})
    with caplog.at_level(logging.WARNING):
        build_loader(path, encoder_class(), plan=plan)
    assert "leaves out 1 samples: cook.image_count 1" in caplog.text
