"""Samples and encoders that the tests of this folder share."""

from __future__ import annotations

import io
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
from PIL import Image

from packloom.config import SampleConfig
from packloom.task_encoders import TaskEncoder


@pytest.fixture(scope="session")
def picture() -> Callable[[int, int], bytes]:
    """``picture(height, width)``: a PNG of seeded noise."""

    def make(height: int, width: int) -> bytes:
        noise = np.random.default_rng(height * 10_007 + width).integers(0, 256, (height, width, 3), dtype=np.uint8)
        buffer = io.BytesIO()
        Image.fromarray(noise).save(buffer, "PNG", compress_level=1)
        return buffer.getvalue()

    return make


@pytest.fixture(scope="session")
def chat_row(picture: Callable[[int, int], bytes]) -> Callable[[Sequence[tuple[int, int]]], dict[str, Any]]:
    """``chat_row([(height, width), ...])``: a raw row with these images between words, and two answers."""

    def make(sizes: Sequence[tuple[int, int]]) -> dict[str, Any]:
        first: list[dict[str, Any]] = [{"type": "text", "text": "Look: "}]
        for index in range(len(sizes)):
            first += [{"type": "image", "image": f"{index}.png"}, {"type": "text", "text": f" number {index}, "}]
        messages = [
            {"role": "user", "content": [*first, {"type": "text", "text": "what is it?"}]},
            {"role": "assistant", "content": [{"type": "text", "text": "A cat."}]},
            {"role": "user", "content": [{"type": "text", "text": "Sure?"}]},
            {"role": "assistant", "content": [{"type": "text", "text": "Yes 🙂."}]},
        ]
        images = {f"{index}.png": picture(*size) for index, size in enumerate(sizes)}
        return {"__key__": f"row-{len(sizes)}", "json": {"messages": messages}, **images}

    return make


@pytest.fixture(scope="session")
def encoder_of(processor_dir: Callable[[str], Any]) -> Callable[..., TaskEncoder]:
    """``encoder_of(family, **settings)``: the encoder of a real processor folder."""
    made: dict[Any, TaskEncoder] = {}

    def make(family: str, **settings: Any) -> TaskEncoder:
        if family not in made:
            made[family] = TaskEncoder.from_pretrained(processor_dir(family))
        first = made[family]
        key = (family, tuple(sorted(settings.items())))
        if key not in made:  # the tokenizer and the image processor are loaded once
            made[key] = type(first)(first.parts, config=SampleConfig(**settings))
        return made[key]

    return make
