"""Rows, images and shards that the tests of this folder share, and the names of one encoder."""

from __future__ import annotations

import io
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from packloom.datasets import write_shards
from packloom.report.spec import DataSpec, EncoderSpec


def jpeg(width: int, height: int, *, format: str = "JPEG", mode: str = "RGB") -> bytes:
    """A picture with some structure."""
    picture = Image.linear_gradient("L").resize((width, height)).convert(mode)
    file = io.BytesIO()
    picture.save(file, format=format)
    return file.getvalue()


def talk(key: str, *turns: str, images: Sequence[bytes] = (), **fields: Any) -> dict[str, Any]:
    """A raw sample: user and assistant texts in turn, the images in the first."""
    roles = ("user", "assistant")
    messages: list[dict[str, Any]] = [
        {"role": roles[number % 2], "content": [{"type": "text", "text": text}]} for number, text in enumerate(turns)
    ]
    names = [f"{number}.jpg" for number in range(len(images))]
    messages[0]["content"][:0] = [{"type": "image", "image": name} for name in names]
    return {
        "__key__": key,
        "json": {"messages": messages, **fields},
        **dict(zip(names, images, strict=True)),
    }


@pytest.fixture(scope="session")
def make_talk() -> Callable[..., dict[str, Any]]:
    """``make_talk(key, question, answer, ..., images=[bytes])``."""
    return talk


@pytest.fixture(scope="session")
def make_jpeg() -> Callable[..., bytes]:
    """``make_jpeg(width, height)``."""
    return jpeg


@pytest.fixture(scope="session")
def qwen(processor_dir: Callable[[str], Path]) -> str:
    """The folder of a Qwen2.5-VL processor."""
    return str(processor_dir("qwen2_5_vl"))


@pytest.fixture(scope="session")
def encoder_spec(qwen: str) -> EncoderSpec:
    return EncoderSpec(processor=qwen)


@pytest.fixture(scope="session")
def clean(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """30 good samples in 3 shards: n-th has n words in its answer; each third has an image, each ninth a second one."""
    folder = tmp_path_factory.mktemp("clean") / "shards"
    rows = []
    for number in range(30):
        count = (number % 3 == 0) + (number % 9 == 0)
        pictures = [jpeg(56 + 28 * (number % 4), 84) for _ in range(count)]
        rows.append(talk(f"{number:04d}", "What is it?", "word " * (number + 1), images=pictures))
    write_shards(rows, folder, samples_per_shard=10)
    return folder


@pytest.fixture(scope="session")
def clean_spec(clean: Path) -> DataSpec:
    return DataSpec(path=(str(clean),))
