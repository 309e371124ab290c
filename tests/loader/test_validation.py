"""Validation sets: finite, ordered, the same at every evaluation, equal on all ranks, made up by zero-loss fillers."""

from __future__ import annotations

from collections.abc import Callable
from itertools import islice
from pathlib import Path
from typing import Any

import pytest

import packloom
from packloom.blend import Blend, Leaf
from packloom.errors import ConfigError, PackloomError, ShardError

Fixture = Callable[..., Any]
PADDED = {"layout": "padded", "micro_batch_size": 4}


def keys(batches: Any) -> list[str]:
    return [key for batch in batches for key in batch["sample_keys"]]


def test_ordered_and_the_same_at_every_evaluation(write: Fixture, encoder_class: Any, view: Fixture) -> None:
    path = write([1 + place % 5 for place in range(30)], {7: "cook"}, per_shard=8)
    every = [f"{place:04d}" for place in range(30) if place != 7]
    sets = packloom.build_validation({"one": path, "two": [path]}, encoder_class(), **PADDED)
    assert list(sets) == ["one", "two"]
    first = list(sets["one"])
    assert keys(first) == keys(sets["two"]) == every
    assert [batch["input_ids"].shape[0] for batch in first] == [4] * 8  # 29 samples and three fillers
    assert [batch["source_sample_num"] for batch in first] == [4] * 7 + [1]
    assert first[-1]["labels"][1:].eq(-100).all()
    assert [view(batch) for batch in sets["one"]] == [view(batch) for batch in first]


def test_an_evaluation_that_was_left_early_starts_afresh(write: Fixture, encoder_class: Any, view: Fixture) -> None:
    path = write([2] * 40)
    for settings in ({}, {"num_workers": 2}, {"num_workers": 1, "persistent_workers": True}):
        val = packloom.build_validation({"val": path}, encoder_class(), **settings)["val"]
        whole = [view(batch) for batch in val]
        older = iter(val)
        next(older)
        assert [view(batch) for batch in islice(val, 3)] == whole[:3]
        assert [view(batch) for batch in val] == whole
        with pytest.raises(PackloomError, match="a newer iteration"):
            next(older)


@pytest.mark.parametrize("layout", [{}, PADDED], ids=["packed", "padded"])
def test_ranks_get_equally_many(write: Fixture, encoder_class: Any, view: Fixture, layout: Any) -> None:
    path = write([1 + place % 8 for place in range(41)])
    settings = {"num_lanes": 8, "min_lane_samples": 2, **layout}
    single = packloom.build_validation({"val": path}, encoder_class(), **settings)["val"]
    for dp_size in (2, 4):
        ranks = [
            packloom.build_validation({"val": path}, encoder_class(), dp_rank=rank, dp_size=dp_size, **settings)["val"]
            for rank in range(dp_size)
        ]
        for _ in range(2):
            batches = [list(rank) for rank in ranks]
            assert len({len(own) for own in batches}) == 1
            steps = [batch for step in zip(*batches, strict=True) for batch in step]
            assert [view(b) for b in steps if b["sample_keys"]] == [view(b) for b in single]
            assert all(b["num_loss_tokens"] == 0 for b in steps if not b["sample_keys"])


def test_a_blend_is_gone_through_once(write: Fixture, encoder_class: Any, tmp_path: Path) -> None:
    a, b = write([1] * 5, name="a"), write([2] * 3, name="b")
    blend = Blend(of=(Leaf(path=a, weight=100), Leaf(path=b, weight=1)))
    (tmp_path / "blend.yaml").write_text(
        "splits:\n  train: {path: nowhere}\n  val: {blend_epochized: [{path: a, repetitions: 9}, {path: b}]}\n"
    )
    file = str(tmp_path / "blend.yaml")
    sets = packloom.build_validation({"python": blend, "file": file}, encoder_class(), **PADDED)
    order = [f"{place:04d}" for place in (0, 1, 2, 3, 4, 0, 1, 2)]
    assert keys(sets["python"]) == keys(sets["file"]) == order
    assert next(iter(sets["file"]))["source_counts"] == {"a": {"samples": 4, "input_tokens": 4, "loss_tokens": 0}}


def test_the_part_val_is_read(encoder_class: Any, write: Fixture) -> None:
    """Evaluating on the training part would go unnoticed."""
    folder = Path(write([1] * 6, per_shard=2))
    meta = folder / ".nv-meta"
    meta.mkdir()
    names = sorted(path.name for path in folder.glob("*.tar"))
    counts = ", ".join(f'"{name}": 2' for name in names)
    (meta / ".info.json").write_text(f'{{"shard_counts": {{{counts}}}}}')
    (meta / "split.yaml").write_text(f"split_parts: {{train: [{names[0]}], val: [{names[1]}], test: [{names[2]}]}}\n")
    for source in (str(folder), Blend(of=(Leaf(path=str(folder)),))):
        for part, wanted in ((None, ["0002", "0003"]), ("test", ["0004", "0005"])):
            settings = {} if part is None else {"split_part": part}
            sets = packloom.build_validation({"x": source}, encoder_class(), **settings)
            assert keys(sets["x"]) == wanted


def test_what_a_validation_set_cannot_be(write: Fixture, encoder_class: Any) -> None:
    with pytest.raises(ConfigError, match="finite and ordered, so it has no shuffle, epochs: leave it out"):
        packloom.build_validation({"val": write([1])}, encoder_class(), shuffle=True, epochs=2)
    with pytest.raises(ShardError, match=r"leaf 'bare' .* has no index .*packloom index"):
        packloom.build_validation({"val": write([1], indexed=False, name="bare")}, encoder_class())
