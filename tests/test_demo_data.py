"""The demo's samples: fixed by the seed, all good ones encode, each damaged one is refused for its own reason."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

pytest.importorskip("easy_vqa", reason="needs the extra 'demo'")
pytest.importorskip("skimage", reason="needs the extra 'demo'")

from packloom import TaskEncoder
from packloom.demo.data import demo_samples
from packloom.demo.extras import require
from packloom.demo.run import MAX_PIXELS, PACK_LENGTH
from packloom.errors import CapabilityError, ConfigError, SampleError


def test_the_seed_fixes_samples_and_order() -> None:
    first, again, other = (list(demo_samples(30, seed=seed)) for seed in (1, 1, 2))
    assert first == again
    assert [raw["__key__"] for raw in first] != [raw["__key__"] for raw in other]


@pytest.mark.parametrize("number", [1, 2, 30, 200])
def test_the_number_of_good_samples_is_what_was_asked_for(number: int) -> None:
    keys = [raw["__key__"] for raw in demo_samples(number)]
    assert len(set(keys)) == len(keys)
    assert sum(not key.startswith("damaged-") for key in keys) == number
    assert sum(key.startswith("damaged-") for key in keys) == 5


def test_more_pictures_than_there_are_is_an_error() -> None:
    with pytest.raises(ConfigError, match="4000 pictures"):
        list(demo_samples(10_000))


def test_a_conversation_is_what_easy_vqa_says() -> None:
    questions = {(q, a) for q, a, _ in zip(*require("easy_vqa").get_train_questions(), strict=True)}
    raw = next(raw for raw in demo_samples(5) if raw["__key__"].startswith("vqa-"))
    messages = json.loads(raw["json"])["messages"]
    assert messages[0]["content"][0] == {"type": "image", "image": "0.png"}
    texts = [message["content"][-1]["text"] for message in messages]
    assert set(zip(texts[::2], texts[1::2], strict=True)) <= questions


def test_good_samples_encode_and_damaged_ones_are_refused(processor_dir: Callable[[str], Path]) -> None:
    encoder = TaskEncoder.from_pretrained(processor_dir("qwen2_5_vl"), max_length=PACK_LENGTH, max_pixels=MAX_PIXELS)
    refused = {}
    for raw in demo_samples(120):
        try:
            encoder.batch([encoder.encode_sample(raw)])
        except SampleError as error:
            refused[error.key] = error.code
    assert sorted(refused) == [
        "damaged-cut-off-jpeg",
        "damaged-image-missing",
        "damaged-no-answer",
        "damaged-not-an-image",
        "damaged-too-long",
    ]


def test_a_missing_package_is_one_line_with_the_fix() -> None:
    with pytest.raises(CapabilityError, match=r"no_such_package.*pip install 'packloom\[demo\]'"):
        require("no_such_package")
