"""The loader with a real encoder: shards with images go in, and the batches equal those made by hand."""

from __future__ import annotations

import io
from collections.abc import Callable
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image

from packloom.config import DataConfig, SampleConfig, SourceConfig
from packloom.datasets import read_shard, write_shards
from packloom.errors import ConfigError
from packloom.loader import build_loader, merge_states
from packloom.models import route
from packloom.task_encoders import TaskEncoder


@pytest.fixture(scope="module")
def encoder(processor_dir: Callable[[str], Path]) -> TaskEncoder:
    return TaskEncoder.from_pretrained(processor_dir("qwen2_5_vl"), max_length=256)


def sample(number: int, *, data: bytes | None = None) -> dict[str, Any]:
    picture = io.BytesIO()
    Image.new("RGB", (56 + 28 * number, 84), (40 * number, 90, 160)).save(picture, "PNG")
    question = [{"type": "image", "image": "0.png"}, {"type": "text", "text": "What colour is it?"}]
    answer = {"role": "assistant", "content": f"Colour number {number}."}
    row = {"messages": [{"role": "user", "content": question}, answer]}
    return {"__key__": f"{number:04d}", "json": row, "0.png": picture.getvalue() if data is None else data}


@pytest.fixture
def shards(tmp_path: Path) -> Path:
    broken = sample(2)["0.png"][:60]  # its header is whole, so it fails when it is decoded
    rows = [sample(0), sample(1), sample(2, data=broken), sample(3), {**sample(4), "1.png": b"no place refers to me"}]
    write_shards(rows, tmp_path)
    return tmp_path


def test_batches_equal_those_made_by_hand(encoder: TaskEncoder, shards: Path) -> None:
    loader = build_loader(shards, encoder, shuffle=False, epochs=1)
    [batch] = loader
    raws = [raw for raw in read_shard(str(shards / "shard-000000.tar")) if raw["__key__"] in ("0000", "0001", "0003")]
    rows = encoder.batch([encoder.encode_sample(raw) for raw in raws])
    expected = encoder.collate(rows, expand_pixels=False)
    assert batch.keys() == expected.keys()
    for name, value in expected.items():
        assert torch.equal(batch[name], value) if isinstance(value, torch.Tensor) else batch[name] == value, name
    assert {record.key: record.stage for record in loader.skip_records} == {"0002": "media", "0004": "encode"}


def test_float_pixels_on_request(encoder: TaskEncoder, shards: Path) -> None:
    [packed], [expanded] = (
        build_loader(shards, encoder, shuffle=False, epochs=1, expand_pixels=wanted) for wanted in (False, True)
    )
    assert packed["pixel_values"].dtype == torch.uint8
    assert "pixel_table" not in expanded
    assert torch.equal(route(packed, "first")["pixel_values"], expanded["pixel_values"])


def test_resume_with_images(encoder: TaskEncoder, tmp_path: Path) -> None:
    write_shards((sample(number) for number in range(20)), tmp_path, samples_per_shard=8)
    settings = {"epochs": 2, "open_packs": 4, "buffer_size": 8}
    whole = list(build_loader(tmp_path, encoder, **settings))
    ranks = [build_loader(tmp_path, encoder, dp_rank=rank, dp_size=2, num_workers=rank, **settings) for rank in (0, 1)]
    got = [batch for step in zip(*(islice(loader, 2) for loader in ranks), strict=True) for batch in step]
    assert sum(len(lane["waiting"]["waiting"][0]) for lane in ranks[1].state_dict()["lanes"].values()) > 2
    single = build_loader(tmp_path, encoder, **settings)
    single.load_state_dict(merge_states([loader.state_dict() for loader in ranks]))
    got += list(single)
    assert len(got) == len(whole) > 6
    for ours, theirs in zip(got, whole, strict=True):
        assert ours.keys() == theirs.keys()
        for name, value in theirs.items():
            assert torch.equal(ours[name], value) if isinstance(value, torch.Tensor) else ours[name] == value, name


def test_sample_settings_that_the_encoder_was_not_built_with(encoder: TaskEncoder, shards: Path) -> None:
    source = SourceConfig(path=str(shards), epochs=1)
    list(build_loader(DataConfig(source=source, sample=SampleConfig(max_length=256)), encoder))
    with pytest.raises(ConfigError, match=r"built with other sample settings \(overlong\)"):
        build_loader(DataConfig(source=source, sample=SampleConfig(max_length=256, overlong="truncate")), encoder)
