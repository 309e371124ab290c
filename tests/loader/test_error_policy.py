"""One error policy for all stages: what fails in packing or collate is lost alone, and too many end the run."""

from __future__ import annotations

import json
import tarfile
from collections.abc import Callable, Iterable, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

import pytest

from packloom.errors import ConfigError, SampleError, TooManyErrors
from packloom.loader import build_loader
from packloom.packing import BestFitPacker, Cost, PackerFactory, PackLimits
from packloom.types import Batch, Row

Fixture = Callable[..., Any]
BAD = {3, 4, 11}


def keys(batches: Iterable[Batch]) -> list[str]:
    return sorted(key for batch in batches for key in batch["sample_keys"])


def numbered(places: Iterable[int]) -> list[str]:
    return [f"{place:04d}" for place in places]


@pytest.fixture
def refusing(encoder_class: Any) -> Any:
    """An encoder whose collate refuses the samples in BAD, without naming them."""

    class Refusing(encoder_class):
        def collate(self, rows: Sequence[Row], **settings: Any) -> Batch:
            for row in rows:
                if row.sample.key in numbered(BAD):
                    raise SampleError("its tensors do not fit", code="collate.shape")
            return super().collate(rows, **settings)

    return Refusing()


@pytest.mark.parametrize(
    ("layout", "dp_size", "num_workers", "indexed"),
    [("packed", 1, 0, True), ("padded", 2, 1, True), ("packed", 2, 0, True), ("padded", 1, 0, False),
     ("packed", 1, 1, False)],
)  # fmt: skip
def test_a_sample_that_fails_in_collate_is_lost_alone(
    write: Fixture, build_ranks: Fixture, tmp_path: Path, refusing: Any, layout: str, dp_size: int, num_workers: int,
    indexed: bool,
) -> None:  # fmt: skip
    path = write([3] * 16, indexed=indexed, per_shard=4)
    settings = {"layout": layout, "micro_batch_size": 3 if layout == "padded" else 1, "num_workers": num_workers}
    records = tmp_path / "bad.jsonl"
    ranks = build_ranks(path, refusing, dp_size, epochs=1, num_lanes=2, quarantine=str(records), **settings)
    batches = [list(rank) for rank in ranks]
    assert len({len(own) for own in batches}) == 1
    assert keys(batch for own in batches for batch in own) == numbered(set(range(16)) - BAD)
    found = [json.loads(line) for line in records.read_text().splitlines()]
    assert {(item["key"], item["stage"], item["code"]) for item in found} == {
        (key, "collate", "collate.shape") for key in numbered(BAD)
    }
    assert len(found) == 3
    assert all((item["offset"] is not None) == indexed for item in found)


def test_an_endless_run_replaces_it(write: Fixture, refusing: Any) -> None:
    settings: dict[str, Any] = {"layout": "padded", "micro_batch_size": 3, "num_lanes": 1, "shuffle": False}
    batches = list(islice(build_loader(write([3] * 16), refusing, **settings), 4))
    assert [batch["sample_keys"] for batch in batches] == [
        numbered(group) for group in ((0, 1, 2), (5, 6, 7), (6, 7, 8), (9, 10, 12))
    ]


def test_what_fails_in_company_only(write: Fixture, encoder_class: Any) -> None:
    class Naming(encoder_class):
        named = "0002"

        def collate(self, rows: Sequence[Row], **settings: Any) -> Batch:
            if len(rows) > 1 and any(row.sample.key == "0002" for row in rows):
                raise SampleError("of another kind than the others", key=self.named)
            return super().collate(rows, **settings)

    path = write([2] * 4)
    loader = build_loader(path, Naming(), epochs=1)
    assert keys(loader) == ["0000", "0001", "0003"]
    Naming.named = "somebody"
    with pytest.raises(SampleError, match="'somebody': of another kind"):
        list(build_loader(path, Naming(), epochs=1))


def test_all_samples_fail_in_collate(write: Fixture, encoder_class: Any) -> None:
    class Failing(encoder_class):
        def collate(self, rows: Sequence[Row], **settings: Any) -> Batch:
            raise SampleError("never fits", code="collate.never")

    path = write([2] * 4)
    for epochs in (1, None):
        with pytest.raises(TooManyErrors, match=r"most often with collate\.never"):
            list(build_loader(path, Failing(), epochs=epochs, max_consecutive_errors=1000))


class Refuses5(BestFitPacker):
    """Takes no sample of five tokens."""

    def push(self, index: int, cost: Cost) -> list[list[int]]:
        if cost.tokens == 5:
            raise SampleError("five tokens fit nowhere", code="pack.five")
        return super().push(index, cost)


def refuses_5(costs: Sequence[Cost], limits: PackLimits) -> list[list[int]]:
    if any(cost.tokens == 5 for cost in costs):
        raise SampleError("five tokens fit nowhere", code="pack.five")
    return [[place] for place in range(0, len(costs), 2)]


@pytest.mark.parametrize("indexed", [True, False])
@pytest.mark.parametrize("packer", [PackerFactory(make=Refuses5), refuses_5])
def test_a_sample_that_the_packer_refuses_is_lost_alone(
    write: Fixture, build_ranks: Fixture, encoder_class: Any, packer: Any, indexed: bool
) -> None:
    sizes = [1 + place % 6 for place in range(40)]
    bad = [place for place, size in enumerate(sizes) if size == 5]
    path = write(sizes, indexed=indexed)
    dp_size, settings = 2 if indexed else 1, {"max_wait": 9} if packer is refuses_5 else {}
    ranks = build_ranks(path, encoder_class(), dp_size, epochs=1, num_lanes=2, packer=packer, **settings)
    batches = [list(rank) for rank in ranks]
    assert len({len(own) for own in batches}) == 1
    assert keys(batch for own in batches for batch in own) == numbered(set(range(40)) - set(bad))
    records = [record for rank in ranks for record in rank.skip_records]
    assert sorted((record.key, record.stage, record.code) for record in records) == [
        (key, "pack", "pack.five") for key in numbered(bad)
    ]
    assert all(record.source == f"{path}/shard-000000.tar" for record in records)


def test_a_resume_among_refusals(write: Fixture, encoder_class: Any, refusing: Any) -> None:
    path = write([1 + place % 6 for place in range(40)])
    settings: dict[str, Any] = {"num_lanes": 2, "min_lane_samples": 10, "packer": PackerFactory(make=Refuses5)}
    whole = build_loader(path, refusing, **settings)
    batches, states = [], []
    for batch in islice(whole, 12):
        batches.append(batch["sample_keys"])
        states.append(whole.state_dict())
    for stop in (0, 4, 7):
        resumed = build_loader(path, refusing, **settings)
        resumed.load_state_dict(json.loads(json.dumps(states[stop])))
        assert [batch["sample_keys"] for batch in islice(resumed, 11 - stop)] == batches[stop + 1 :]


def test_a_packer_that_refuses_all(write: Fixture, encoder_class: Any) -> None:
    path = write([5] * 20)
    for packer in (PackerFactory(make=Refuses5), refuses_5):
        for epochs in (1, None):
            settings: dict[str, Any] = {"max_consecutive_errors": 10**6, "packer": packer, "epochs": epochs}
            with pytest.raises(TooManyErrors, match=r"most often with pack\.five"):
                list(build_loader(path, encoder_class(), **settings))
    with pytest.raises(TooManyErrors, match="7 samples in a row failed in stage 'pack'"):
        list(build_loader(path, encoder_class(), max_consecutive_errors=7, packer=PackerFactory(make=Refuses5)))


def test_a_pack_function_that_refuses_no_sample_alone_is_a_bug(write: Fixture, encoder_class: Any) -> None:
    def never(costs: Sequence[Cost], limits: PackLimits) -> list[list[int]]:
        if len(costs) > 1:
            raise SampleError("never")
        return [[0]]

    with pytest.raises(SampleError, match="never"):
        list(build_loader(write([1, 2]), encoder_class(), epochs=1, packer=never))


@pytest.mark.parametrize("fault", ["cook", "media"])
@pytest.mark.parametrize("num_workers", [0, 1])
def test_a_large_share_of_lost_samples_ends_the_run(
    write: Fixture, encoder_class: Any, fault: str, num_workers: int
) -> None:
    path = write([8] * 60, {place: fault for place in range(60) if place % 5 > 1})  # three of five
    settings: dict[str, Any] = {"shuffle": False, "epochs": 1, "num_workers": num_workers, "min_error_samples": 20}
    stage, code = ("encode", "cook.image_count") if fault == "cook" else ("media", "media.decode")
    pattern = (
        rf"60\.0% of the samples are lost \(12 of 20 in stage '{stage}'\), more than max_error_fraction 50\.0%: most"
        rf" often with {code} \(12 of 12 times\), first at sample '0002'.*: (no image|cut off)\. Mend"
    )
    loader = build_loader(path, encoder_class(), open_packs=1, buffer_size=0, **settings)
    with pytest.raises(TooManyErrors, match=pattern):
        list(loader)
    assert loader.metrics()["skipped"] == 12
    for other in ({"max_error_fraction": 0.6}, {"max_error_fraction": None}, {"min_error_samples": 61}):
        assert len(keys(build_loader(path, encoder_class(), **{**settings, **other}))) == 24


def test_stages_lose_their_shares_one_after_the_other(write: Fixture, encoder_class: Any) -> None:
    faults = dict.fromkeys(range(0, 80, 4), "cook") | dict.fromkeys(range(1, 80, 4), "media")
    path = write([8] * 80, faults)  # a quarter, and then a third of what is left: half of all
    settings: dict[str, Any] = {"shuffle": False, "epochs": 1, "min_error_samples": 30}
    assert len(keys(build_loader(path, encoder_class(), max_error_fraction=0.6, **settings))) == 40
    with pytest.raises(TooManyErrors, match=r"in stage 'encode', \d+ of \d+ in stage 'media'"):
        list(build_loader(path, encoder_class(), max_error_fraction=0.45, **settings))


def test_limits_that_are_none(write: Fixture, encoder_class: Any) -> None:
    path = write([1])
    for settings in ({"max_error_fraction": 1.5}, {"max_error_fraction": -0.1}, {"min_error_samples": 0}):
        with pytest.raises(ConfigError, match=next(iter(settings))):
            build_loader(path, encoder_class(), **settings)


def test_every_record_has_its_offset(write: Fixture, encoder_class: Any, tmp_path: Path) -> None:
    path = write([2] * 12, {1: "cook", 6: "media", 9: "cook"}, per_shard=5, media=True)
    loader = build_loader(path, encoder_class(), epochs=1)
    list(loader)
    found = {record.key: (record.source, record.offset) for record in loader.skip_records}
    expected = {}
    for key, shard in (("0001", 0), ("0006", 1), ("0009", 1)):
        name = f"{path}/shard-{shard:06d}.tar"
        with tarfile.open(name) as archive:
            expected[key] = name, archive.getmember(f"{key}.json").offset_data
    assert found.pop("0006")[1] == expected.pop("0006")[1]  # its source is what the encoder says
    assert found == expected
