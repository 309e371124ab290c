"""Rows made by hand or by hypothesis, and the rows that a batch was made of, read back from its boundaries."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from itertools import pairwise
from typing import Any

import pytest
import torch
from hypothesis import strategies as st

from packloom.types import EncodedSample, Row


def _make_row(
    ids: list[int],
    trained: list[int] | None = None,
    *,
    key: str = "a",
    positions: list[list[int]] | None = None,
    token_tensors: Mapping[str, torch.Tensor] | None = None,
    media: Mapping[str, torch.Tensor] | None = None,
) -> Row:
    mask = torch.zeros(len(ids), dtype=torch.bool)
    mask[list(range(len(ids))) if trained is None else trained] = True
    sample = EncodedSample(
        key=key,
        input_ids=torch.tensor(ids, dtype=torch.int64),
        loss_mask=mask,
        position_ids=torch.tensor(positions or [list(range(len(ids)))], dtype=torch.int64),
        token_tensors=token_tensors or {},
    )
    return Row(sample=sample, media_tensors=media or {})


@st.composite
def _row_lists(draw: st.DrawFn) -> list[Row]:
    """1 to 6 rows of 1 to 9 tokens, all with one or all with three position axes, some with media."""
    axes = draw(st.sampled_from([1, 3]))
    rows = []
    for number in range(draw(st.integers(1, 6))):
        length = draw(st.integers(1, 9))
        ids = draw(st.lists(st.integers(0, 20), min_size=length, max_size=length))
        trained = draw(st.lists(st.integers(0, length - 1), unique=True))
        steps = draw(st.lists(st.integers(0, 3), min_size=axes * length, max_size=axes * length))
        positions = torch.tensor(steps).view(axes, length)
        positions[:, 0] = 0
        images = draw(st.integers(0, 2))
        pixels = torch.tensor(draw(st.lists(st.integers(0, 255), min_size=2 * images, max_size=2 * images)))
        grids = torch.tensor([[1, 1, 1]] * images)
        rows.append(
            _make_row(
                ids,
                trained,
                key=f"k{number}",
                positions=positions.cumsum(1).tolist(),
                token_tensors={
                    "mm_token_type_ids": torch.tensor(
                        draw(st.lists(st.integers(0, 2), min_size=length, max_size=length))
                    )
                },
                media={"pixel_values": pixels.view(images, 2), "image_grid_thw": grids} if images else {},
            )
        )
    return rows


@pytest.fixture(scope="session")
def make_row() -> Callable[..., Row]:
    """``make_row(ids, trained=None, ...)``: a row; ``trained`` lists the positions trained on, None is all."""
    return _make_row


@pytest.fixture(scope="session")
def row_lists() -> st.SearchStrategy[list[Row]]:
    """A hypothesis strategy, to be drawn with ``st.data()``."""
    return _row_lists()


def _segments(batch: Mapping[str, Any]) -> list[slice]:
    logical = batch["cu_seqlens_q"].tolist()
    physical = batch.get("cu_seqlens_q_padded", batch["cu_seqlens_q"]).tolist()
    lengths = [stop - start for start, stop in pairwise(logical)]
    return [slice(start, start + length) for start, length in zip(physical, lengths, strict=False)]


@pytest.fixture(scope="session")
def segments() -> Callable[[Mapping[str, Any]], list[slice]]:
    """``segments(batch)``: where the real tokens of each sample of a packed batch lie in [0, T)."""
    return _segments
