"""build_loader: every good sample arrives once, in batches of the layout that was asked for."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import fields
from typing import Any

import pytest

from packloom.config import (
    DataConfig,
    DistributionConfig,
    LoaderConfig,
    PackingConfig,
    SampleConfig,
    SourceConfig,
)
from packloom.errors import ConfigError
from packloom.loader import LoaderSettings, build_loader
from packloom.packing import Cost, PackLimits
from packloom.types import Batch

Write = Callable[..., str]


def keys(batches: Iterable[Batch]) -> list[str]:
    return [key for batch in batches for key in batch["sample_keys"]]


def numbered(count: int) -> list[str]:
    return [f"{place:04d}" for place in range(count)]


def test_packed_batches(write: Write, encoder_class: Any) -> None:
    loader = build_loader(write([4, 4, 3, 8, 5]), encoder_class(), shuffle=False, epochs=1)
    batches = list(loader)
    assert sorted(keys(batches)) == numbered(5)
    assert sorted(batch["input_ids"].shape for batch in batches) == [(1, 8)] * 3
    assert {batch["layout"] for batch in batches} == {"packed"}
    counts = {name: value for name, value in loader.metrics().items() if not name.startswith("seconds/")}
    assert counts == {
        "batches": 3, "samples": 5, "input_tokens": 24, "loss_tokens": 19, "skipped": 0, "fill": 1.0,
        "filler_rows": 0, "oldest_wait": 0,
    }  # fmt: skip


def test_padded_batches_in_order(write: Write, encoder_class: Any) -> None:
    loader = build_loader(
        write([1, 2, 3, 4, 5]), encoder_class(), layout="padded", micro_batch_size=2, shuffle=False, epochs=1,
        pad_to_multiple_of=4, label_shift="none",
    )  # fmt: skip
    batches = list(loader)
    assert [batch["sample_keys"] for batch in batches] == [["0000", "0001"], ["0002", "0003"], ["0004"]]
    assert [tuple(batch["input_ids"].shape) for batch in batches] == [(2, 4), (2, 4), (2, 8)]
    assert batches[2]["input_ids"].tolist() == [[5, 5, 5, 5, 5, 0, 0, 0], [1, 0, 0, 0, 0, 0, 0, 0]]
    assert batches[2]["labels"].tolist() == [[5] * 5 + [-100] * 3, [-100] * 8]
    assert [batches[2][name] for name in ("source_sample_num", "num_input_tokens", "num_loss_tokens")] == [1, 5, 5]
    assert loader.metrics()["filler_rows"] == 1
    assert {batch["label_shift"] for batch in batches} == {"none"}
    assert loader.metrics()["fill"] == 15 / 32


def test_segments_are_aligned_before_they_are_packed(write: Write, encoder_class: Any) -> None:
    path = write([2, 2, 2])  # 6 tokens would fit one pack of 8, but aligned they are 12
    loader = build_loader(path, encoder_class(4), pack_length=8, segment_multiple=4, shuffle=False, epochs=1)
    batches = list(loader)
    assert [batch["source_sample_num"] for batch in batches] == [2, 1]
    assert batches[0]["cu_seqlens_q_padded"].tolist() == [0, 4, 8]
    fixed = build_loader(path, encoder_class(4), pack_length=16, pad_to_length=True, epochs=1)
    assert [tuple(batch["input_ids"].shape) for batch in fixed] == [(1, 16)]


def test_endless_streams_go_on_after_an_early_end(write: Write, encoder_class: Any) -> None:
    loader = build_loader(write([1, 2, 3]), encoder_class(), layout="padded", micro_batch_size=2)
    stream = iter(loader)
    assert Counter(keys(next(stream) for _ in range(6))) == dict.fromkeys(numbered(3), 4)
    assert len(keys(batch for batch, _ in zip(loader, range(3), strict=False))) == 6


def test_spawned_workers_give_the_same_batches(write: Write, encoder_class: Any) -> None:
    encoder = encoder_class()
    path = write([1 + place % 8 for place in range(12)], {4: "cook"}, indexed=False)
    spawned = keys(build_loader(path, encoder, num_workers=1, start_method="spawn", epochs=1))
    assert spawned == keys(build_loader(path, encoder, epochs=1))
    assert len(spawned) == 11


def first_two(costs: Sequence[Cost], limits: PackLimits) -> list[list[int]]:
    return [[0, 1]] if len(costs) > 1 else [[0]]


def test_a_packer_of_ones_own(write: Write, encoder_class: Any) -> None:
    loader = build_loader(write([1, 1, 1]), encoder_class(), packer=first_two, shuffle=False, epochs=1)
    assert [batch["sample_keys"] for batch in loader] == [["0000", "0001"], ["0002"]]


def test_a_config_and_keywords_that_override_it(write: Write, encoder_class: Any) -> None:
    config = DataConfig(
        source=SourceConfig(path=write([1, 2, 3, 4]), shuffle=False, epochs=1),
        loader=LoaderConfig(layout="padded", micro_batch_size=2),
    )
    assert [batch["sample_keys"] for batch in build_loader(config, encoder_class())] == [
        ["0000", "0001"],
        ["0002", "0003"],
    ]
    loader = build_loader(config, encoder_class(), micro_batch_size=4, dp_rank=1, dp_size=2)
    assert [batch["sample_keys"] for batch in loader] == [[]]  # all four are in the batch of rank 0
    assert (loader.config.loader.micro_batch_size, loader.config.distribution.dp_size) == (4, 2)


@pytest.mark.parametrize(
    ("settings", "max_length", "message"),
    [
        ({}, None, "pass pack_length"),
        ({"pack_length": 4}, 8, "pack_length 4 is below the encoder's max_length 8"),
        ({"pack_length": 8, "pad_to_multiple_of": 3}, 8, "not a multiple of pad_to_multiple_of 3"),
        ({"segment_multiple": 3}, 8, "not a multiple of segment_multiple 3"),
        ({"micro_batch_size": 2}, 8, "micro_batch_size must be 1"),
        ({"pack_lenght": 8}, 8, "no setting pack_lenght; known: index_dir, "),
        ({"dp_rank": 2, "dp_size": 2}, 8, "dp_rank 2"),
    ],
)
def test_settings_that_cannot_work(
    write: Write, settings: Any, max_length: int | None, message: str, encoder_class: Any
) -> None:
    with pytest.raises(ConfigError, match=message):
        build_loader(write([1]), encoder_class(max_length), **settings)


def test_a_length_that_is_stated_twice_must_agree(write: Write, encoder_class: Any) -> None:
    config = DataConfig(source=SourceConfig(path=write([1])), sample=SampleConfig(max_length=9))
    with pytest.raises(ConfigError, match=r"sample\.max_length is 9, but the encoder's is 8"):
        build_loader(config, encoder_class(8))


def test_every_field_of_the_stages_is_a_keyword() -> None:
    stages = (SourceConfig, PackingConfig, LoaderConfig, DistributionConfig)
    assert {item.name for stage in stages for item in fields(stage)} == {
        "path",
        "blend",
        *LoaderSettings.__annotations__,
    }
