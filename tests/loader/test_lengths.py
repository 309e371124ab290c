"""Lengths of samples: of all or of some, by any number of workers, with a cache that knows what it holds."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from packloom.config import DataConfig, LoaderConfig, SourceConfig
from packloom.datasets.aux_media import AuxLibrary
from packloom.errors import TooManyErrors
from packloom.loader import lengths as lengths_module
from packloom.loader.feeds import make_feed
from packloom.loader.lengths import Lengths, measure_lengths

pytest.importorskip("pyarrow")


@pytest.fixture
def measure(write: Callable[..., str], encoder_class: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """``measure(...)``: lengths of 20 samples; sample 3 is bad. Chunks hold 8 samples, pieces 3."""
    monkeypatch.setattr(lengths_module, "CHUNK", 8)
    monkeypatch.setattr(lengths_module, "PIECE", 3)
    path = write([1 + place % 7 for place in range(20)], {3: "cook"}, media=True)

    def measured(num_workers: int = 0, *, limit: int = 100, **settings: Any) -> Lengths:
        loader = LoaderConfig(layout="padded", num_workers=num_workers, max_consecutive_errors=limit)
        config = DataConfig(source=SourceConfig(path=path), loader=loader)
        feed = make_feed(config, AuxLibrary())
        assert feed is not None
        return measure_lengths(feed, encoder_class(), config, AuxLibrary(), **settings)

    return measured


def test_columns(measure: Any) -> None:
    for num_workers in (0, 2):
        found = measure(num_workers)
        assert found.tokens.tolist() == [1, 2, 3, 0, 5, 6, 7, 1, 2, 3, 4, 5, 6, 7, 1, 2, 3, 4, 5, 6]
        assert found.loss_tokens.tolist() == found.tokens.tolist()
        assert found.patches.tolist() == found.media_tokens.tolist() == [1, 1, 1, 0] + [1] * 16
        assert found.has_media.tolist() == found.good.tolist() == [True, True, True, False] + [True] * 16
        assert (found.total, found.num_measured, found.is_exact) == (20, 20, True)
        assert [(row, record.key, record.code) for row, record in found.faults.items()] == [
            (3, "0003", "cook.image_count")
        ]
        assert found.refused == {"cook.image_count": 1}


def test_a_part_of_the_samples(measure: Any, tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    some = measure(numbers=[1, 3, 9, 19], cache_dir=cache)
    assert (some.numbers.tolist(), some.tokens.tolist()) == ([1, 3, 9, 19], [2, 0, 3, 6])
    assert (list(some.faults), some.is_exact, some.num_measured) == ([1], False, 4)
    assert list(tmp_path.glob("cache/*/*")) == []  # no chunk is whole
    assert measure(cache_dir=cache).num_measured == 20
    assert len(list(tmp_path.glob("cache/*/*"))) == 3
    again = measure(numbers=[1, 3, 9, 19], cache_dir=cache)
    assert (again.tokens.tolist(), list(again.faults), again.num_measured) == ([2, 0, 3, 6], [1], 0)
    assert measure(numbers=range(8, 16)).num_measured == 8  # without a cache


def test_a_file_of_another_size_is_not_believed(measure: Any, tmp_path: Path) -> None:
    measure(cache_dir=tmp_path / "cache")
    first, _, last = sorted(tmp_path.glob("cache/*/*.parquet"))
    last.write_bytes(first.read_bytes())
    found = measure(cache_dir=tmp_path / "cache")
    assert (found.num_measured, found.tokens[16:].tolist()) == (4, [3, 4, 5, 6])


def test_the_limits_of_the_policy_hold(measure: Any) -> None:
    with pytest.raises(TooManyErrors, match="1 samples in a row failed"):
        measure(limit=1)
