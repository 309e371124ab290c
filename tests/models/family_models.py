"""The name of a family goes in; a tiny, randomly initialised, real transformers model of it comes out.

Vocabularies and image geometry are those of the published models, so that real processors fit; all else is small.
"""

from __future__ import annotations

import copy
from typing import Any

import torch
import transformers

TEXT: dict[str, Any] = {
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "head_dim": 16,
}
TOWER = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 2}
CLIP = TOWER | {"model_type": "clip_vision_model", "image_size": 336, "patch_size": 14, "projection_dim": 32}
SIGLIP = TOWER | {"model_type": "siglip_vision_model", "patch_size": 14, "vision_use_head": False}
PIXTRAL = TOWER | {"model_type": "pixtral", "head_dim": 16}
#: hears 5 seconds instead of 30: the tower of Qwen2-Audio runs over silence too
HEARING = {
    "num_mel_bins": 128,
    "encoder_layers": 2,
    "encoder_attention_heads": 2,
    "encoder_ffn_dim": 48,
    "d_model": 32,
    "max_source_positions": 250,
}
GRID = {"depth": 2, "num_heads": 2, "hidden_size": 32, "intermediate_size": 48, "out_hidden_size": 32}


def rope(*section: int, **rest: Any) -> dict[str, Any]:
    """mRoPE settings; the sections add up to half of the part of a head that is rotated."""
    return {"rope_parameters": {"rope_type": "default", "rope_theta": 1e4, "mrope_section": list(section), **rest}}


QWEN2_TEXT = TEXT | {"vocab_size": 151936} | rope(2, 3, 3)
GLM_TEXT = TEXT | {"vocab_size": 151552} | rope(2, 1, 1, partial_rotary_factor=0.5)
MISTRAL3 = {
    "text_config": TEXT | {"model_type": "mistral", "vocab_size": 131072},
    "vision_config": PIXTRAL | {"image_size": 1540, "patch_size": 14},
}

#: family → (model class, its configuration)
MODELS: dict[str, tuple[str, dict[str, Any]]] = {
    "gemma3": (
        "Gemma3ForConditionalGeneration",
        {
            "text_config": TEXT | {"vocab_size": 262208, "sliding_window": 64},
            "vision_config": SIGLIP | {"image_size": 896},
            "mm_tokens_per_image": 256,
        },
    ),
    "gemma4": (
        "Gemma4ForConditionalGeneration",
        {
            "text_config": TEXT
            | {
                "vocab_size": 262144,
                "vocab_size_per_layer_input": 262144,
                "hidden_size_per_layer_input": 4,
                "global_head_dim": 16,
                "sliding_window": 64,
                "layer_types": ["sliding_attention", "full_attention"],
                "use_bidirectional_attention": "vision",  # as in the larger published models
            },
            "vision_config": TOWER | {"num_key_value_heads": 2, "head_dim": 16, "global_head_dim": 16},
            "audio_config": None,
        },
    ),
    "glm46v": (
        "Glm46VForConditionalGeneration",
        {
            "text_config": GLM_TEXT | {"model_type": "glm4v_text"},
            "vision_config": GRID | {"model_type": "glm4v_vision", "image_size": 336},
            "image_token_id": 151363,
            "video_token_id": 151364,
        },
    ),
    "glm4v": (
        "Glm4vForConditionalGeneration",
        {"text_config": GLM_TEXT, "vision_config": GRID | {"image_size": 336}},
    ),
    "internvl3": (
        "InternVLForConditionalGeneration",
        {
            "text_config": TEXT | {"model_type": "qwen2", "vocab_size": 151680},
            "vision_config": TOWER | {"image_size": [448, 448], "patch_size": [14, 14]},
        },
    ),
    "kimi_k25": (
        "Kimi_K25ForConditionalGeneration",
        {
            "text_config": {
                "model_type": "deepseek_v3",
                "vocab_size": 163856,
                **TOWER,
                "num_key_value_heads": 2,
                "moe_intermediate_size": 16,
                "n_routed_experts": 4,
                "num_experts_per_tok": 2,
                "n_shared_experts": 1,
                "n_group": 1,
                "topk_group": 1,
                "first_k_dense_replace": 1,
                "q_lora_rank": 16,
                "kv_lora_rank": 16,
                "qk_nope_head_dim": 16,
                "qk_rope_head_dim": 8,
                "v_head_dim": 16,
            },
            "vision_config": TOWER,
            "projection_hidden_size": 32,
        },
    ),
    "llava": (
        "LlavaForConditionalGeneration",
        {
            "text_config": TEXT | {"model_type": "llama", "vocab_size": 32064},
            "vision_config": CLIP,
            "image_token_index": 32000,
        },
    ),
    "llava_next": (
        "LlavaNextForConditionalGeneration",
        {
            "text_config": TEXT | {"model_type": "mistral", "vocab_size": 32064},
            "vision_config": CLIP,
            "image_token_index": 32000,
        },
    ),
    "llava_onevision": (
        "LlavaOnevisionForConditionalGeneration",
        {
            "text_config": TEXT | {"model_type": "qwen2", "vocab_size": 152000},
            "vision_config": SIGLIP | {"image_size": 384},
        },
    ),
    "ministral3": (
        "Mistral3ForConditionalGeneration",
        MISTRAL3 | {"text_config": MISTRAL3["text_config"] | {"model_type": "ministral3"}},
    ),
    "mistral3": ("Mistral3ForConditionalGeneration", MISTRAL3),
    "pixtral": (
        "LlavaForConditionalGeneration",
        {
            "text_config": TEXT | {"model_type": "mistral", "vocab_size": 131072},
            "vision_config": PIXTRAL | {"image_size": 1024, "patch_size": 16},
            "image_token_index": 10,
            "vision_feature_layer": -1,
            "vision_feature_select_strategy": "full",
        },
    ),
    "qwen2_5_omni": (
        "Qwen2_5OmniThinkerForConditionalGeneration",
        {
            "text_config": QWEN2_TEXT,
            "vision_config": GRID | {"out_hidden_size": 32, "fullatt_block_indexes": [1]},
            "audio_config": HEARING | {"output_dim": 32, "n_window": 100},
        },
    ),
    "qwen2_5_vl": (
        "Qwen2_5_VLForConditionalGeneration",
        {"text_config": QWEN2_TEXT, "vision_config": GRID | {"fullatt_block_indexes": [1]}},
    ),
    "qwen2_audio": (
        "Qwen2AudioForConditionalGeneration",
        {"text_config": TEXT | {"model_type": "qwen2", "vocab_size": 151936}, "audio_config": HEARING},
    ),
    "qwen2_vl": (
        "Qwen2VLForConditionalGeneration",
        {
            "text_config": QWEN2_TEXT,
            "vision_config": {"depth": 2, "num_heads": 2, "embed_dim": 32, "hidden_size": 32, "mlp_ratio": 2},
        },
    ),
    "qwen3_5": (
        "Qwen3_5ForConditionalGeneration",
        {
            "text_config": TEXT
            | {
                "vocab_size": 248320,
                "head_dim": 32,
                "layer_types": ["linear_attention", "full_attention"],
                "linear_num_key_heads": 2,
                "linear_num_value_heads": 4,
                "linear_key_head_dim": 16,
                "linear_value_head_dim": 16,
            }
            | rope(2, 1, 1, mrope_interleaved=True, partial_rotary_factor=0.25),
            "vision_config": GRID | {"num_position_embeddings": 64},
        },
    ),
    "qwen3_vl": (
        "Qwen3VLForConditionalGeneration",
        {
            "text_config": TEXT | {"vocab_size": 151936} | rope(4, 2, 2, mrope_interleaved=True),
            # features that join the text at its last layer are read by no other token
            "vision_config": GRID | {"num_position_embeddings": 64, "deepstack_visual_indexes": [0]},
        },
    ),
    "smolvlm": (
        "SmolVLMForConditionalGeneration",
        {
            "text_config": TEXT | {"model_type": "llama", "vocab_size": 49280, "pad_token_id": 2},
            "vision_config": TOWER | {"image_size": 512, "patch_size": 16},
            "image_token_id": 49190,
            "scale_factor": 4,
        },
    ),
}
MODELS["gemma4_audio"] = copy.deepcopy(MODELS["gemma4"])
MODELS["gemma4_audio"][1]["text_config"]["use_bidirectional_attention"] = None
MODELS["gemma4_audio"][1]["audio_config"] = {
    "hidden_size": 32,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "subsampling_conv_channels": [128, 4],
    "output_proj_dims": 32,
}
MODELS["gemma4_causal"] = copy.deepcopy(MODELS["gemma4"])
MODELS["gemma4_causal"][1]["text_config"]["use_bidirectional_attention"] = None  # as in the smaller published models


def build(family: str) -> torch.nn.Module:
    """A float32 model, always the same one, with large weights: so a leak between samples shows in the loss."""
    name, settings = MODELS[family]
    model_class = getattr(transformers, name)
    config = model_class.config_class(**settings)
    towers = [getattr(config, name) for name in ("vision_config", "audio_config") if getattr(config, name, None)]
    for part in (config, config.text_config, *towers):
        part.dtype = torch.float32
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = model_class(config).float()
        for parameter in model.parameters():
            if parameter.ndim > 1:
                torch.nn.init.normal_(parameter, std=parameter[0].numel() ** -0.5)
    return model
