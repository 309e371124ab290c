"""Loader.metrics: what was consumed is counted, whoever made it, and time is charged to the stage that took it."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from itertools import count, islice
from pathlib import Path
from typing import Any

import pytest

from packloom.blend import Blend, Leaf
from packloom.loader import build_loader, make_plan, stage_times

Write = Callable[..., str]
SIZES = [1 + place % 7 for place in range(60)]


@pytest.fixture
def ticking(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each look at the clock of the stages is a second later than the one before, in every process."""
    ticks = count()
    monkeypatch.setattr(stage_times, "perf_counter", lambda: float(next(ticks)))


def numbers(loader: Any) -> dict[str, float]:
    return {name: value for name, value in loader.metrics().items() if name != "seconds/wait"}


@pytest.mark.usefixtures("ticking")
@pytest.mark.parametrize("indexed", [True, False])
@pytest.mark.parametrize("num_workers", [0, 1])
def test_a_second_per_call_of_each_stage(write: Write, encoder_class: Any, num_workers: int, indexed: bool) -> None:
    path = write([8] * 5, {1: "cook", 3: "media"}, indexed=indexed)
    loader = build_loader(path, encoder_class(), shuffle=False, epochs=1, num_workers=num_workers)
    assert sum(batch["source_sample_num"] for batch in loader) == 3
    metrics = loader.metrics()
    # Read: five samples, aux media of four packs, and in a stream its end. Media: four packs, and the bad one alone.
    assert metrics["seconds/read"] == (9 if indexed else 10)
    assert (metrics["seconds/encode"], metrics["seconds/media"], metrics["seconds/collate"]) == (5, 5, 3)
    assert metrics["seconds/wait"] > 0
    assert (metrics["skipped"], metrics["skipped/cook.image_count"], metrics["skipped/media.decode"]) == (2, 1, 1)
    shard = f"{path}/shard-000000.tar"
    assert loader.skipped_by_source == {(shard, "cook.image_count"): 1, ("media", "media.decode"): 1}


@pytest.mark.usefixtures("ticking")
@pytest.mark.parametrize("num_workers", [1, 2])
def test_batches_made_ahead_do_not_count(write: Write, encoder_class: Any, num_workers: int) -> None:
    path = write(SIZES, {5: "cook", 40: "cook"})
    settings: dict[str, Any] = {"num_lanes": 4, "min_lane_samples": 10, "open_packs": 2, "buffer_size": 4}
    plain = build_loader(path, encoder_class(), **settings)
    ahead = build_loader(path, encoder_class(), num_workers=num_workers, prefetch_factor=4, **settings)
    found = []
    for _ in islice(zip(plain, ahead, strict=False), 12):
        assert numbers(plain) == numbers(ahead)
        found.append(numbers(ahead))
    assert found[0]["seconds/encode"] < found[-1]["seconds/encode"]


def test_the_age_of_what_waits(write: Write, encoder_class: Any) -> None:
    settings: dict[str, Any] = {"num_lanes": 2, "min_lane_samples": 10, "open_packs": 2, "buffer_size": 4}
    loader = build_loader(write(SIZES), encoder_class(), epochs=1, **settings)
    ages = []
    for _ in loader:
        lanes = loader.state_dict()["lanes"].values()
        waits = [
            lane["drawn"] - 1 - draw
            for lane in lanes
            for group in [*lane["waiting"]["waiting"][:1], *lane["ready"]]
            for draw in group
        ]
        assert loader.metrics()["oldest_wait"] == max(waits, default=0)
        ages.append(loader.metrics()["oldest_wait"])
    assert max(ages) > 3
    assert loader.metrics()["oldest_wait"] == 0
    loader.load_state_dict(loader.state_dict())
    next(iter(loader))
    assert loader.metrics()["oldest_wait"] > 0


@pytest.mark.parametrize("kind", ["balance", "plan"])
@pytest.mark.parametrize("num_workers", [0, 1])
def test_other_engines_measure_too(
    write: Write, encoder_class: Any, tmp_path: Path, kind: str, num_workers: int
) -> None:
    path = write(SIZES, {5: "cook", 40: "media"})
    settings: dict[str, Any] = {"balance": "cost", "balance_window": 4, "num_lanes": 2, "min_lane_samples": 10}
    if kind == "plan":
        pytest.importorskip("pyarrow")
        settings = {"plan": str(tmp_path / "plan.parquet")}
        make_plan(path, encoder_class(), settings["plan"])
    loader = build_loader(path, encoder_class(), epochs=1, num_workers=num_workers, **settings)
    ages = [loader.metrics()["oldest_wait"] for _ in loader]
    metrics = loader.metrics()
    assert min(metrics[f"seconds/{stage}"] for stage in ("wait", "read", "encode", "media", "collate")) > 0
    assert metrics["skipped/media.decode"] == 1
    assert (max(ages) > 0) == (kind == "balance")  # of a plan nothing waits
    assert ages[-1] == 0


def test_skips_by_leaf(write: Write, encoder_class: Any, tmp_path: Path) -> None:
    """Whatever stage loses a sample, it counts for the leaf that it was drawn from, in the file too."""
    paths = [
        write([8] * 12, {1: "cook", 5: "media", 7: "cook"}, name="a"),
        write([8] * 12, {0: "cook", 3: "media"}, name="b"),
    ]
    blend = Blend(kind="epochized", of=(*(Leaf(path=path) for path in paths), Leaf(path=paths[1], repetitions=2)))
    loader = build_loader(blend, encoder_class(), epochs=1, quarantine=str(tmp_path / "bad.jsonl"))
    list(loader)
    cook, media = "cook.image_count", "media.decode"
    assert loader.skipped_by_leaf == {
        ("a", cook): 2, ("a", media): 1, ("b", cook): 1, ("b", media): 1, ("b#2", cook): 2, ("b#2", media): 2,
    }  # fmt: skip
    metrics = loader.metrics()
    assert {name: metrics[f"skipped_of/{name}"] for name in ("a", "b", "b#2")} == {"a": 3, "b": 2, "b#2": 4}
    assert {name: metrics[f"samples/{name}"] for name in ("a", "b", "b#2")} == {"a": 9, "b": 10, "b#2": 20}
    records = [json.loads(line) for line in (tmp_path / "bad.jsonl").read_text().splitlines()]
    assert Counter((item["dataset"], item["code"]) for item in records) == loader.skipped_by_leaf


def test_the_age_of_what_waits_in_a_stream(write: Write, encoder_class: Any) -> None:
    path = write([5, 8, 8, 8, 3], indexed=False)
    loader = build_loader(path, encoder_class(), epochs=1, shuffle=False, open_packs=4, buffer_size=4)
    ages = [loader.metrics()["oldest_wait"] for _ in loader]
    assert len(ages) == 4
    assert ages[0] >= 1
    assert ages[-1] == 0
