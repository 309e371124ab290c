"""Tokens for the page: each once, in order, coloured as the mask says; positions as runs."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from packloom.report.grids import media_grids
from packloom.report.samples import load_encoder
from packloom.report.spec import EncoderSpec
from packloom.report.tokens import position_runs, tokens_of
from packloom.task_encoders import TaskEncoder
from packloom.testing.spans import Reader
from packloom.testing.traits import Traits


@pytest.fixture(scope="module")
def encoder(encoder_spec: EncoderSpec) -> TaskEncoder:
    return load_encoder(encoder_spec)


def test_by_hand(encoder: TaskEncoder, make_talk: Callable[..., Any], make_jpeg: Callable[..., bytes]) -> None:
    sample = encoder.encode_sample(make_talk("k", "Hi 🧵", "東 ok", images=[make_jpeg(84, 56)]))
    found = list(tokens_of(Reader.of(encoder, Traits.of(encoder)), sample))
    behind = found[-13:]
    assert [(token.text, token.kind, token.trained) for token in behind] == [
        ("<|image_pad|>", "media", False), ("<|vision_end|>", "media", False), ("Hi", "text", False),
        (" 🧵", "text", False), ("<|im_end|>", "control", False), ("\n", "text", False),
        ("<|im_start|>", "control", False), ("assistant", "text", False), ("\n", "text", False),
        ("東", "text", True), (" ok", "text", True), ("<|im_end|>", "terminator", True), ("\n", "text", False),
    ]  # fmt: skip
    assert behind[0].count == 6  # 84 × 56 pixels are 3 × 2 tokens
    assert len(behind[3].ids) == behind[3].count > 1  # bytes of one character
    [grid] = media_grids(encoder, sample)
    assert (grid.rows, grid.columns, grid.runs) == (2, 3, ((behind[0].start, 6),))


def test_every_token_is_there_once(
    encoder: TaskEncoder, make_talk: Callable[..., Any], make_jpeg: Callable[..., bytes]
) -> None:
    text = "naïve \u200d👩‍🚀 \t x\n\n  ünï 東京 " * 3
    sample = encoder.encode_sample(make_talk("k", text, text, text, text, images=[make_jpeg(90, 90)] * 2))
    found = list(tokens_of(Reader.of(encoder, Traits.of(encoder)), sample))
    ids = [index for token in found for index in token.ids * (token.count if token.kind == "media" else 1)]
    assert ids == sample.input_ids.tolist()
    assert [token.trained for token in found for _ in range(token.count)] == sample.loss_mask.tolist()
    assert [token.start for token in found] == [sum(t.count for t in found[:n]) for n in range(len(found))]
    whole = encoder.parts.tokenizer.decode(sample.input_ids, skip_special_tokens=False)
    assert "".join(t.text * (t.count if t.kind == "media" else 1) for t in found) == whole


@given(st.lists(st.integers(0, 4), max_size=40) | st.lists(st.integers(0, 1000), max_size=10))
def test_runs_give_the_positions_back(positions: list[int]) -> None:
    runs = position_runs(positions)
    assert [first + step * n for first, step, count in runs for n in range(count)] == positions


def test_runs_are_few() -> None:
    assert position_runs([0, 1, 2, 3, 3, 3, 4, 4, 4, 5]) == [(0, 1, 4), (3, 0, 2), (4, 0, 3), (5, 0, 1)]
    assert position_runs(range(5000)) == [(0, 1, 5000)]


@pytest.mark.parametrize(("family", "shape"), [("pixtral", (6, 8)), ("smolvlm", (0, 0))])
def test_rows_are_told_from_tiles(
    family: str, shape: tuple[int, int], processor_dir: Callable[[str], Path], make_talk: Any, make_jpeg: Any
) -> None:
    encoder = load_encoder(EncoderSpec(processor=str(processor_dir(family))))
    sample = encoder.encode_sample(make_talk("k", "?", "A.", images=[make_jpeg(128, 96)]))
    [grid] = media_grids(encoder, sample)
    assert (grid.rows, grid.columns) == shape
    assert sum(count for _, count in grid.runs) == sample.media[0].num_tokens
