"""Un-indexed shards: read as a stream, split over ranks and workers, without a state."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest

from packloom.errors import ConfigError, ShardError, StateError, TooManyErrors
from packloom.loader import build_loader
from packloom.types import Batch

Write = Callable[..., str]


def keys(batches: Iterable[Batch]) -> list[str]:
    return [key for batch in batches for key in batch["sample_keys"]]


def numbered(count: int) -> list[str]:
    return [f"{place:04d}" for place in range(count)]


@pytest.mark.parametrize("per_shard", [3, 1000])
@pytest.mark.parametrize("num_workers", [0, 2])
def test_each_good_sample_exactly_once_over_ranks_and_workers(
    write: Write, num_workers: int, per_shard: int, encoder_class: Any
) -> None:
    faults = {3: "cook", 5: "media", 11: "cook", 20: "media"}
    path = write([1 + place % 8 for place in range(25)], faults, per_shard, indexed=False)
    seen: Counter[str] = Counter()
    skipped: Counter[str] = Counter()
    for rank in range(2):
        loader = build_loader(path, encoder_class(), dp_rank=rank, dp_size=2, num_workers=num_workers, epochs=1)
        seen.update(keys(loader))
        skipped.update({record.key: 1 for record in loader.skip_records})
    assert seen == Counter(key for key in numbered(25) if int(key) not in faults)
    assert skipped == Counter(f"{place:04d}" for place in faults)


def test_the_order_is_a_function_of_seed_and_epoch(write: Write, encoder_class: Any) -> None:
    path = write([1] * 40, per_shard=10, indexed=False)
    first = build_loader(path, encoder_class(1), seed=3, epochs=1)
    orders = [keys(first), keys(first)]
    assert orders[0] != orders[1]
    assert [sorted(each) for each in orders] == [numbered(40)] * 2
    again = build_loader(path, encoder_class(1), seed=3, epochs=1)
    assert [keys(again), keys(again)] == orders
    assert keys(build_loader(path, encoder_class(1), seed=3, epochs=2)) == orders[0] + orders[1]
    assert keys(build_loader(path, encoder_class(1), seed=4, epochs=1)) != orders[0]


def test_more_slots_than_samples(write: Write, encoder_class: Any) -> None:
    path = write([1, 2], indexed=False)
    ranks = [list(build_loader(path, encoder_class(), dp_rank=rank, dp_size=5, epochs=1)) for rank in range(5)]
    assert sorted(key for batches in ranks for key in keys(batches)) == numbered(2)
    for rank in range(5):  # endless and shuffled, each rank gets both in time
        stream = iter(build_loader(path, encoder_class(), dp_rank=rank, dp_size=5, layout="padded"))
        assert set(keys([next(stream) for _ in range(2)])) == set(numbered(2))


def test_padded_batches_are_refilled_and_the_last_is_short(write: Write, encoder_class: Any) -> None:
    path = write([1] * 8, {0: "media", 3: "media", 4: "cook"}, indexed=False)
    loader = build_loader(path, encoder_class(), layout="padded", micro_batch_size=2, shuffle=False, epochs=1)
    assert [batch["sample_keys"] for batch in loader] == [["0001", "0002"], ["0005", "0006"], ["0007"]]


def test_a_cut_shard_costs_what_is_not_there(write: Write, encoder_class: Any) -> None:
    path = Path(write([2] * 6, per_shard=3, indexed=False))
    second = path / "shard-000001.tar"
    second.write_bytes(second.read_bytes()[: 4 * 512])  # two samples of 2 blocks
    loader = build_loader(path, encoder_class(), epochs=1)
    assert sorted(keys(loader)) == ["0000", "0001", "0002", "0003", "0004"]
    [record] = loader.skip_records
    assert (record.key, record.source, record.stage, record.code) == (
        str(second),
        str(second),
        "read",
        "read.truncated",
    )


@pytest.mark.parametrize("epochs", [1, None])
def test_all_samples_bad_is_an_error_even_below_the_limit(write: Write, epochs: int | None, encoder_class: Any) -> None:
    path = write([1, 2, 3], {0: "cook", 1: "cook", 2: "cook"}, indexed=False)
    loader = build_loader(path, encoder_class(), epochs=epochs, max_consecutive_errors=10**9)
    with pytest.raises(TooManyErrors, match=r"all 3 samples .* most often with cook\.image_count \(3 times\)"):
        list(loader)


def test_nothing_to_read(tmp_path: Path, write: Write, encoder_class: Any) -> None:
    with pytest.raises(ShardError, match="does not exist"):
        build_loader(tmp_path / "absent", encoder_class())
    with pytest.raises(ConfigError, match="path is empty"):
        build_loader([], encoder_class())
    (tmp_path / "empty.tar").write_bytes(b"\0" * 10_240)
    for epochs in (1, None):
        with pytest.raises(ShardError, match="hold no samples"):
            list(build_loader(tmp_path / "empty.tar", encoder_class(), epochs=epochs))
    path = write([1], indexed=False)
    assert list(build_loader(path, encoder_class(), dp_rank=1, dp_size=2, epochs=1)) == []
    with pytest.raises(ShardError, match="rank 1 of 2 has no samples"):
        list(build_loader(path, encoder_class(), dp_rank=1, dp_size=2, shuffle=False))


def test_there_is_no_state(write: Write, encoder_class: Any) -> None:
    loader = build_loader(write([1], indexed=False), encoder_class())
    with pytest.raises(StateError, match="Run `packloom index` on its folder"):
        loader.state_dict()
    with pytest.raises(StateError, match="Run `packloom index` on its folder"):
        loader.load_state_dict({})
