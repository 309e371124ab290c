"""A tiny, randomly initialised model of the encoder's family: an encoder goes in, a transformers model comes out."""

from __future__ import annotations

from typing import Any

import torch
from transformers import AutoConfig, AutoModelForImageTextToText, PreTrainedModel

from packloom.errors import CapabilityError
from packloom.task_encoders.base import TaskEncoder

_TEXT = {
    "hidden_size": 128,
    "intermediate_size": 256,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 32768,
}
_VISION = {"depth": 2, "num_heads": 4, "hidden_size": 64, "intermediate_size": 128, "out_hidden_size": 128}

#: Family → (text settings, vision settings) beside the common ones. The mRoPE sections sum to half of head_dim (32).
_FAMILIES: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "qwen2_vl": (
        {"rope_parameters": {"rope_type": "default", "rope_theta": 1e6, "mrope_section": [4, 6, 6]}},
        {"depth": 2, "num_heads": 4, "embed_dim": 64, "hidden_size": 128, "mlp_ratio": 2},
    ),
    "qwen2_5_vl": (
        {"rope_parameters": {"rope_type": "default", "rope_theta": 1e6, "mrope_section": [4, 6, 6]}},
        {**_VISION, "fullatt_block_indexes": [1]},
    ),
    "qwen3_vl": (
        {
            "head_dim": 32,
            "rope_parameters": {
                "rope_type": "default",
                "rope_theta": 1e6,
                "mrope_section": [8, 4, 4],
                "mrope_interleaved": True,
            },
        },
        {**_VISION, "num_position_embeddings": 64, "deepstack_visual_indexes": [0, 1]},
    ),
}


def require_tiny_model(encoder: TaskEncoder) -> str:
    """The encoder's family; CapabilityError if there is no tiny model for it, or no images to train on."""
    family = encoder.family.name
    if family not in _FAMILIES:
        raise CapabilityError(
            f"the demo has a tiny model for {', '.join(_FAMILIES)}, not for {family}: give --processor one of those"
        )
    if encoder.parts.image_processor is None:
        raise CapabilityError(f"{encoder.parts.name} has no image processor, and the demo trains on images")
    return family


def tiny_model(encoder: TaskEncoder, *, seed: int = 0) -> PreTrainedModel:
    """A float32 model of about 20 million parameters, nearly all of them token embeddings, on the CPU.

    Its vocabulary and patches fit the encoder's processor. Raises CapabilityError for a family without a tiny model.
    """
    family = require_tiny_model(encoder)
    text, vision = _FAMILIES[family]
    tokenizer: Any = encoder.parts.tokenizer
    images: Any = encoder.parts.image_processor
    geometry = {
        "patch_size": images.patch_size,
        "temporal_patch_size": images.temporal_patch_size,
        "spatial_merge_size": images.merge_size,
    }
    config = AutoConfig.for_model(
        family,
        text_config={**_TEXT, **text, "vocab_size": len(tokenizer)},
        vision_config={**vision, **geometry},
        tie_word_embeddings=True,
        image_token_id=encoder.media_id,
        vision_start_token_id=tokenizer.convert_tokens_to_ids("<|vision_start|>"),
        vision_end_token_id=tokenizer.convert_tokens_to_ids("<|vision_end|>"),
    )
    with torch.random.fork_rng(
        devices=[]
    ):  # transformers draws the weights from the global generator: leave the user's alone
        torch.manual_seed(seed)
        model: PreTrainedModel = AutoModelForImageTextToText.from_config(config, dtype=torch.float32)
    return model.train()
