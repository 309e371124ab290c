"""make_key_table: every sample is found by its key, and by no other."""

from __future__ import annotations

import pickle
from pathlib import Path

import numpy as np
import pytest

import packloom.datasets.key_table as key_table
from packloom.datasets import build_index, open_dataset, write_shards
from packloom.datasets.key_table import make_key_table
from packloom.errors import ReadError


def test_every_key_is_found(shards: Path) -> None:
    build_index(shards)
    dataset = open_dataset(shards)
    table = pickle.loads(pickle.dumps(make_key_table(dataset)))
    for position, sample in enumerate(dataset):
        assert table.find(sample["__key__"]) == dataset.locate(position)
    with pytest.raises(ReadError, match="'a/9': no sample of the dataset has this key") as caught:
        table.find("a/9")
    assert caught.value.code == "read.missing_key"


def test_equal_digests_are_told_apart_by_the_keys(shards: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    build_index(shards)
    dataset = open_dataset(shards)
    monkeypatch.setattr(key_table, "_digest", lambda keys: np.zeros(len(keys), np.uint64))
    table = make_key_table(dataset)
    assert [table.find(key) for key in ("a/1", "c/0")] == [(0, 1), (2, 0)]
    with pytest.raises(ReadError, match="no sample"):
        table.find("x")


def test_a_key_that_two_samples_have_is_refused(tmp_path: Path) -> None:
    for name in ("one", "two"):
        write_shards([{"__key__": "k", "txt": name}], tmp_path / name)
    table = make_key_table(open_dataset([tmp_path / "one", tmp_path / "two"]))
    with pytest.raises(ReadError, match=r"'k': 2 samples of the dataset have this key, e\.g\. in .*one.* and .*two"):
        table.find("k")
