"""Positions of the other mRoPE families against the get_rope_index of their transformers models."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from transformers.models.glm4v.modeling_glm4v import Glm4vModel
from transformers.models.glm46v.modeling_glm46v import Glm46VModel
from transformers.models.qwen3_5.modeling_qwen3_5 import Qwen3_5Model

FAMILIES = {"glm4v": Glm4vModel, "glm46v": Glm46VModel, "qwen3_5": Qwen3_5Model}
#: (height, width) of the images of each sample
SAMPLES = [[], [(301, 451)], [(37, 1203)], [(640, 33), (95, 131)], [(3, 5), (229, 227)]]


def rope_oracle(family: str, **inputs: Any) -> torch.Tensor:
    """[3, B, S]: transformers' get_rope_index, called without a model."""
    model = FAMILIES[family]
    stand_in = SimpleNamespace(config=SimpleNamespace(vision_config=SimpleNamespace(spatial_merge_size=2)))
    stand_in.get_vision_position_ids = model.get_vision_position_ids.__get__(stand_in)
    return model.get_rope_index(stand_in, **inputs)[0]


@pytest.fixture(params=FAMILIES)
def family(request):
    return request.param


@pytest.fixture
def rows(family, encoder_of, chat_row):
    encoder = encoder_of(family)
    return encoder.batch([encoder.encode_sample(chat_row(sizes)) for sizes in SAMPLES])


def test_a_sample_has_the_positions_of_get_rope_index(family, rows):
    for row, sizes in zip(rows, SAMPLES, strict=True):
        expected = rope_oracle(
            family,
            input_ids=row.sample.input_ids[None],
            mm_token_type_ids=row.sample.token_tensors["mm_token_type_ids"][None],
            image_grid_thw=row.media_tensors.get("image_grid_thw"),
        )
        assert torch.equal(row.sample.position_ids, expected[:, 0])
        text_only = bool((expected == expected[0]).all())
        assert text_only == (not sizes), "images must set the axes apart, or this compares nothing"


def test_a_padded_batch_has_the_positions_of_get_rope_index(family, rows, encoder_of):
    batch = encoder_of(family).collate(rows, layout="padded")
    names = ("input_ids", "mm_token_type_ids", "image_grid_thw", "attention_mask")
    expected = rope_oracle(family, **{name: batch[name] for name in names})
    kept = batch["attention_mask"].bool()
    assert not kept.all()
    assert len(batch["image_grid_thw"]) == 6
    assert torch.equal(batch["position_ids"][:, kept], expected[:, kept])
