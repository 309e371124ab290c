"""Which family a processor gets: by its class, by config.json where families share one; what else that says."""

from __future__ import annotations

import dataclasses
import logging
from types import SimpleNamespace
from typing import Any

import pytest

from packloom.task_encoders.processors import ProcessorParts
from packloom.task_encoders.registry import BUILT_IN, SHARED_CLASSES, find_encoder, shared_model_type
from packloom.task_encoders.text import TextTaskEncoder

PARTS = ProcessorParts(name="x", tokenizer=SimpleNamespace(), chat_template="")


def chosen(model_type: str | None, processor_class: str | None = None, *, text_only: bool = False) -> str:
    encoder = find_encoder(model_type=model_type, processor_class=processor_class, text_only=text_only)
    return encoder.family.name


@pytest.mark.parametrize(
    ("model_type", "name"),
    [
        ("qwen3_5_moe", "qwen3_5"),
        ("qwen4_exp", "qwen3_5"),
        ("glm4v_moe", "glm46v"),
        ("mistral_large4", "mistral3"),
        ("gemma4_unified", "gemma4"),
        ("gemma3_text", "gemma3"),
        ("idefics3", "smolvlm"),
        ("kimi_vl", "kimi_vl"),
    ],
)
def test_model_types_that_share_a_family(model_type: str, name: str) -> None:
    assert chosen(model_type) == name


def test_every_built_in_encoder_loads() -> None:
    assert all(chosen(model_type) for model_type in BUILT_IN)
    assert {member for group in SHARED_CLASSES.values() for member in group} <= {*BUILT_IN}


def test_config_json_decides_where_families_share_a_class() -> None:
    assert shared_model_type("Qwen3VLProcessor", {"model_type": "qwen3_5"}) == "qwen3_5"
    assert shared_model_type("PixtralProcessor", {"model_type": "mistral3"}) == "mistral3"
    assert shared_model_type("LlavaProcessor", {"model_type": "qwen2_vl"}) is None  # the class is that of one family
    assert shared_model_type("Qwen3VLProcessor", {"model_type": "gemma3"}) is None
    assert chosen("llava", "PixtralProcessor") == "pixtral"


def test_a_shared_class_without_config_json_is_pointed_out(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        assert chosen(None, "Qwen3VLProcessor") == "qwen3_vl"
    assert "taken for qwen3_vl, but qwen3_vl, qwen3_vl_moe, qwen3_5" in caplog.text


def test_unknown_models() -> None:
    assert chosen("martian", "MartianProcessor", text_only=True) == "text"
    assert chosen("martian", "MartianProcessor") == "generic"


CONFIGS: list[tuple[dict[str, Any], bool]] = [
    ({"model_type": "llama", "layer_types": ["full_attention", "sliding_attention"]}, False),
    ({"model_type": "nemotron_h", "hybrid_override_pattern": "M-M*"}, True),
    ({"model_type": "qwen3_next", "linear_num_key_heads": 2}, True),
    ({"text_config": {"layer_types": ["full_attention", "linear_attention"]}}, True),
    ({}, False),
]


@pytest.mark.parametrize(("config", "leaks"), CONFIGS)
def test_recurrent_text_models_are_not_packed(config: dict[str, Any], leaks: bool) -> None:
    _, family = TextTaskEncoder.settle(dataclasses.replace(PARTS, config=config))
    assert bool(family.packing_leak) == leaks
