"""A pass over heads gives what a whole pass gives, and does not touch images whose size the index knows."""

from __future__ import annotations

import io
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from packloom import TaskEncoder
from packloom.config import DataConfig, SourceConfig
from packloom.datasets import write_shards
from packloom.datasets.aux_media import AuxLibrary
from packloom.errors import ReadError
from packloom.loader.feed import LaneFeed
from packloom.loader.feeds import make_feed
from packloom.loader.heads import png_header, read_heads
from packloom.loader.plan_make import make_plan
from packloom.report.spec import DataSpec, EncoderSpec
from packloom.report.stats import measure_stats
from packloom.task_encoders import cook
from packloom.types import RawSample


def picture(number: int) -> bytes:
    out = io.BytesIO()
    turned = Image.Exif()
    turned[0x0112] = (1, 6)[number % 2]
    image = Image.linear_gradient("L").resize((60 + 40 * number, 90)).convert("RGB")
    image.save(out, ("JPEG", "PNG", "WEBP")[number % 3], exif=turned)
    return out.getvalue()


@pytest.fixture
def feed(tmp_path: Path) -> LaneFeed:
    """Six samples with an image each, and one without."""
    samples: list[dict[str, Any]] = []
    for number in range(7):
        text = "<image> ?" if number < 6 else "?"
        row = {"conversations": [{"from": "human", "value": text}, {"from": "gpt", "value": "!" * (number + 1)}]}
        samples.append({"__key__": f"{number}", "json": row} | ({"0.jpg": picture(number)} if number < 6 else {}))
    write_shards(samples, tmp_path / "shards")
    found = make_feed(DataConfig(source=SourceConfig(path=str(tmp_path / "shards"))), AuxLibrary())
    assert found is not None
    return found


@pytest.fixture(scope="module")
def encoder(processor_dir: Callable[[str], Path]) -> TaskEncoder:
    return TaskEncoder.from_pretrained(str(processor_dir("qwen2_vl")))


def test_the_same_lengths_though_images_are_damaged(feed: LaneFeed, encoder: TaskEncoder, tmp_path: Path) -> None:
    whole = [encoder.encode_sample(feed.read(number)) for number in range(7)]
    damage(tmp_path / "shards")
    with pytest.raises(ReadError):
        feed.read(0)
    heads = list(read_heads(feed, range(7), encoder))
    assert [raw["0.jpg"] for raw in heads[:2] if not isinstance(raw, ReadError)] == [
        png_header(60, 90),
        png_header(90, 100),  # turned by EXIF
    ]
    found = [encoder.encode_sample(raw) for raw in heads if not isinstance(raw, ReadError)]
    assert [sample.input_ids.tolist() for sample in found] == [sample.input_ids.tolist() for sample in whole]
    assert [sample.num_patches for sample in found] == [sample.num_patches for sample in whole]
    assert len({sample.num_patches for sample in whole}) > 4


def damage(shards: Path) -> None:
    [shard] = shards.glob("*.tar")
    data = bytearray(shard.read_bytes())
    for number in range(6):
        start = data.index(picture(number))
        data[start : start + 40] = bytes(40)  # no header is left
    shard.write_bytes(data)


def test_stats_and_plans_touch_no_media(feed: LaneFeed, processor_dir: Callable[[str], Path], tmp_path: Path) -> None:
    pytest.importorskip("pyarrow")
    path, processor = str(tmp_path / "shards"), str(processor_dir("qwen2_vl"))
    whole = [TaskEncoder.from_pretrained(processor).encode_sample(feed.read(number)) for number in range(7)]
    damage(tmp_path / "shards")  # who reads an image gets an error

    stats = measure_stats(DataSpec(path=(path,)), EncoderSpec(processor=processor))
    assert stats.lengths.tokens.tolist() == [sample.num_tokens for sample in whole]
    assert stats.lengths.patches.tolist() == [sample.num_patches for sample in whole]
    assert not stats.lengths.faults
    encoder = TaskEncoder.from_pretrained(processor)
    report = make_plan(path, encoder, tmp_path / "plan.parquet", pack_length=4096, micro_batch_size=1)
    assert (report.num_samples, report.num_measured) == (7, 7)


def own_cooker(raw: RawSample) -> Any:
    return cook(raw)


def test_who_may_look_at_more_gets_it(
    feed: LaneFeed, encoder: TaskEncoder, encoder_class: Callable[..., Any], processor_dir: Callable[[str], Path]
) -> None:
    own = TaskEncoder.from_pretrained(str(processor_dir("qwen2_vl")), cooker=own_cooker)
    for other in (own, encoder_class()):
        [raw] = read_heads(feed, [3], other)
        assert not isinstance(raw, ReadError)
        assert raw["0.jpg"] == picture(3)


def test_bad_samples_stand_in_their_places(feed: LaneFeed, encoder: TaskEncoder, tmp_path: Path) -> None:
    [shard] = (tmp_path / "shards").glob("*.tar")
    data = shard.read_bytes()
    shard.write_bytes(data.replace(json.dumps("!!").encode(), json.dumps("??").encode()))
    found = list(read_heads(feed, [0, 1, 2], encoder))
    assert [isinstance(raw, ReadError) for raw in found] == [False, True, False]


def test_a_header_holds_no_pixels() -> None:
    image = Image.open(io.BytesIO(png_header(7, 5)))
    assert image.size == (7, 5)
    with pytest.raises(OSError, match="truncated"):
        image.load()
