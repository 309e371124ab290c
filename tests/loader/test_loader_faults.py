"""The loader and bad samples: each is counted and named, the others arrive, and too many end the run."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import pytest

from packloom.datasets import write_shards
from packloom.errors import BatchError, ConfigError, CookError, MediaError, TooManyErrors
from packloom.loader import build_loader
from packloom.types import Batch, EncodedSample, Row

Write = Callable[..., str]


def keys(batches: Iterable[Batch]) -> list[str]:
    return [key for batch in batches for key in batch["sample_keys"]]


@pytest.mark.parametrize("num_workers", [0, 1])
def test_bad_samples_are_counted_recorded_and_replaced(
    write: Write, tmp_path: Path, num_workers: int, encoder_class: Any
) -> None:
    path = write([2, 2, 2, 2, 9, 2], {1: "cook", 2: "media"})
    quarantine = tmp_path / "bad.jsonl"
    loader = build_loader(
        path, encoder_class(None), pack_length=8, shuffle=False, epochs=1, num_workers=num_workers,
        quarantine=str(quarantine),
    )  # fmt: skip
    assert sorted(keys(loader)) == ["0000", "0003", "0005"]
    assert loader.skipped == {"cook.image_count": 1, "media.decode": 1, "pack.too_long": 1}
    shard = f"{path}/shard-000000.tar"
    records = {json.loads(line)["key"]: json.loads(line) for line in quarantine.read_text().splitlines()}
    assert sorted(records) == ["0001", "0002", "0004"]
    assert records["0001"] == {
        "key": "0001", "source": shard, "stage": "encode", "code": "cook.image_count", "reason": "no image", "epoch": 0,
        "offset": 1536, "dataset": "",
    }  # fmt: skip
    assert records["0002"]["stage"] == "media"
    assert records["0004"]["reason"] == "has 9 tokens (9 aligned), a pack holds 8"
    assert loader.metrics()["skipped"] == 3


def test_samples_that_share_a_key_are_told_apart(tmp_path: Path, encoder_class: Any) -> None:
    for name, fault in (("a", None), ("b", "media")):
        write_shards([{"__key__": "same", "json": {"n": 2, "fault": fault}}], tmp_path / name)
    loader = build_loader([tmp_path / "b", tmp_path / "a"], encoder_class(), shuffle=False, epochs=1)
    [batch] = loader
    assert batch["sample_keys"] == ["same"]
    assert loader.skipped == {"media.decode": 1}


@pytest.mark.parametrize("num_workers", [0, 1])
@pytest.mark.parametrize("fault", ["cook", "media"])
@pytest.mark.parametrize("layout", ["packed", "padded"])
def test_a_run_of_bad_samples_ends_with_a_clear_error(
    write: Write, layout: Any, fault: str, num_workers: int, encoder_class: Any
) -> None:
    path = write([8] * 6, dict.fromkeys(range(1, 6), fault))
    loader = build_loader(
        path, encoder_class(), layout=layout, shuffle=False, max_consecutive_errors=4, num_workers=num_workers,
        buffer_size=0, open_packs=1,
    )  # fmt: skip
    with pytest.raises(TooManyErrors, match="4 samples in a row failed") as caught:
        list(loader)
    assert (num_workers == 1) == ("Traceback" in str(caught.value.__cause__))
    assert [record.key for record in loader.skip_records] == ["0001", "0002", "0003", "0004"]


def test_a_good_sample_ends_a_run_of_bad_ones(write: Write, encoder_class: Any) -> None:
    path = write([8] * 9, {1: "media", 2: "media", 4: "media", 5: "media", 7: "cook"})
    loader = build_loader(path, encoder_class(), max_consecutive_errors=3, shuffle=False, epochs=1)
    assert sorted(keys(loader)) == ["0000", "0003", "0006", "0008"]
    assert loader.skipped == {"media.decode": 4, "cook.image_count": 1}


@pytest.mark.parametrize("epochs", [1, None])
def test_all_samples_bad_is_an_error_even_below_the_limit(write: Write, epochs: int | None, encoder_class: Any) -> None:
    path = write([1, 2, 3], {0: "cook", 1: "cook", 2: "cook"})
    loader = build_loader(path, encoder_class(), epochs=epochs, max_consecutive_errors=10**9)
    with pytest.raises(TooManyErrors, match=r"all 3 samples .* most often with cook\.image_count \(3 times\)"):
        list(loader)


@pytest.mark.parametrize("num_workers", [0, 1])
def test_on_error_raise(write: Write, num_workers: int, encoder_class: Any) -> None:
    loader = build_loader(
        write([1, 2], {1: "cook"}), encoder_class(), on_error="raise", shuffle=False, num_workers=num_workers, epochs=1
    )
    with pytest.raises(CookError, match="sample '0001': no image") as caught:
        list(loader)
    assert (caught.value.key, caught.value.code) == ("0001", "cook.image_count")
    assert loader.skipped == {"cook.image_count": 1}


def test_an_error_that_does_not_pickle_still_arrives(write: Write, encoder_class: Any) -> None:
    loader = build_loader(write([1], {0: "local"}), encoder_class(), on_error="raise", num_workers=1, epochs=1)
    with pytest.raises(Exception, match="sample '0000': of a local class"):
        list(loader)


@pytest.mark.parametrize("num_workers", [0, 1])
def test_a_bug_is_not_swallowed(write: Write, num_workers: int, encoder_class: Any) -> None:
    loader = build_loader(write([1], {0: "bug"}), encoder_class(), num_workers=num_workers, epochs=1)
    with pytest.raises(KeyError, match="a bug"):
        list(loader)


def test_an_error_of_the_system_in_a_worker_is_not_taken_for_its_death(write: Write, encoder_class: Any) -> None:
    class Failing(encoder_class):
        def encode_sample(self, raw: Any) -> EncodedSample:
            raise ConnectionResetError("of the encoder's own server")

    with pytest.raises(ConnectionResetError, match="of the encoder's own server"):
        list(build_loader(write([1]), Failing(), num_workers=1, epochs=1))


def test_an_encoder_that_loses_or_blames_no_sample_is_a_bug(write: Write, encoder_class: Any) -> None:
    class Losing(encoder_class):
        def batch(self, samples: Sequence[EncodedSample]) -> list[Row]:
            return super().batch(samples)[1:]

    class Blaming(encoder_class):
        def batch(self, samples: Sequence[EncodedSample]) -> list[Row]:
            if len(samples) > 1:
                raise MediaError("together they fail", key="nobody")
            return super().batch(samples)

    path = write([1, 2])
    with pytest.raises(BatchError, match=r"made 1 rows of 2 samples, the first of which is '000"):
        list(build_loader(path, Losing(), epochs=1))
    with pytest.raises(MediaError, match="together they fail"):
        list(build_loader(path, Blaming(), epochs=1))


def test_a_quarantine_file_that_cannot_be_written_fails_at_once(
    write: Write, tmp_path: Path, encoder_class: Any
) -> None:
    with pytest.raises(ConfigError, match="quarantine"):
        build_loader(write([1]), encoder_class(), quarantine=str(tmp_path))
