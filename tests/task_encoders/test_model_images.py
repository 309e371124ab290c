"""Joined media tensors in real, tiny models: as many features as media tokens, and the same as row by row."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from PIL import Image

from packloom.collates.media_joins import join
from packloom.task_encoders import anyres_images, pixtral_images, smolvlm_images
from packloom.task_encoders.gemma3_images import Gemma3ImageRule
from packloom.task_encoders.gemma4_images import Gemma4ImageRule
from packloom.task_encoders.glm_images import glm_image_rule
from packloom.task_encoders.internvl_images import InternVLImageRule
from packloom.task_encoders.kimi_images import KimiImageRule
from packloom.task_encoders.llava_images import LlavaImageRule
from packloom.task_encoders.processors import load_parts
from packloom.task_encoders.qwen_vl import qwen_image_rule

PIXTRAL = (pixtral_images.PixtralImageRule.from_parts, pixtral_images.MEDIA_JOINS)
#: family → (its rule, media key → join)
FAMILIES: dict[str, tuple[Any, Any]] = {
    "gemma3": (Gemma3ImageRule.from_parts, {}),
    "gemma4": (Gemma4ImageRule.from_parts, {}),
    "glm4v": (glm_image_rule, {}),
    "internvl3": (InternVLImageRule.from_parts, {}),
    "kimi_k25": (KimiImageRule.from_parts, {}),
    "llava": (LlavaImageRule.from_parts, {}),
    "llava_next": (anyres_images.llava_next_image_rule, anyres_images.MEDIA_JOINS),
    "llava_onevision": (anyres_images.llava_onevision_image_rule, anyres_images.MEDIA_JOINS),
    "ministral3": PIXTRAL,
    "mistral3": PIXTRAL,
    "pixtral": PIXTRAL,
    "qwen3_5": (qwen_image_rule, {}),
    "smolvlm": (smolvlm_images.SmolVLMImageRule.from_parts, smolvlm_images.MEDIA_JOINS),
}
#: (height, width) of the images of two rows
ROWS = [[(60, 45)], [(50, 150), (40, 40)]]
#: the same for families whose every image costs thousands of patches
FEW = {"gemma3": [[(60, 45)], [(50, 150)]], "gemma4": [[(60, 45)], [(50, 150)]], "smolvlm": [[(30, 300)], [(300, 30)]]}


@pytest.fixture(scope="session")
def tiny(shared_dir: Path) -> dict[str, Any]:
    path = shared_dir / "reference" / "tiny_configs.py"
    spec = importlib.util.spec_from_file_location("tiny_configs", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.TINY


def build(tiny: dict[str, Any], family: str) -> Any:
    name, settings = tiny[family]
    kind = getattr(transformers, name)
    config = kind.config_class(**settings)
    config.dtype = config.text_config.dtype = config.vision_config.dtype = torch.float32
    torch.manual_seed(0)
    return kind(config).float().eval()


def noise(height: int, width: int) -> Image.Image:
    pixels = np.random.default_rng(height * 10_007 + width).integers(0, 256, (height, width, 3), dtype=np.uint8)
    return Image.fromarray(pixels)


def features(model: Any, tensors: dict[str, torch.Tensor]) -> torch.Tensor:
    """[F, D]: what the model puts in the place of its media tokens."""
    with torch.no_grad():
        pooled = model.get_image_features(**tensors).pooler_output
    return torch.cat([piece.reshape(-1, piece.shape[-1]) for piece in pooled])


@pytest.mark.parametrize("family", FAMILIES)
def test_joined_rows_give_the_features_of_single_rows(family, tiny, processor_dir):
    if family == "kimi_k25":
        pytest.importorskip("torchvision", reason="the Kimi image processor needs torchvision")
    make_rule, joins = FAMILIES[family]
    parts = load_parts(processor_dir(family))
    rule, model = make_rule(parts), build(tiny, family)
    rows, counts = [], []
    for sizes in FEW.get(family, ROWS):
        images = [[noise(*size) for size in sizes]]
        tensors = parts.image_processor(images=images, return_tensors="pt", **rule.call_options)
        rows.append({key: tensors[key] for key in rule.model_keys})
        counts.append(sum(sum(rule.measure(*size, num_images=len(sizes)).runs) for size in sizes))

    single = [features(model, row) for row in rows]
    assert [len(part) for part in single] == counts
    joined = {key: join(joins.get(key, "concat"), [row[key] for row in rows]) for key in rule.model_keys}
    torch.testing.assert_close(features(model, joined), torch.cat(single), atol=1e-5, rtol=1e-5)
