"""The Qwen-VL encoders against transformers' own processors and models, bit for bit."""

from __future__ import annotations

import io
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from PIL import Image
from transformers import AutoImageProcessor, AutoTokenizer
from transformers.models.qwen2_5_vl import modeling_qwen2_5_vl
from transformers.models.qwen2_5_vl.processing_qwen2_5_vl import Qwen2_5_VLProcessor
from transformers.models.qwen2_vl import modeling_qwen2_vl
from transformers.models.qwen2_vl.processing_qwen2_vl import Qwen2VLProcessor
from transformers.models.qwen3_vl import modeling_qwen3_vl
from transformers.models.qwen3_vl.processing_qwen3_vl import Qwen3VLProcessor

from packloom.task_encoders import TaskEncoder

FAMILIES = {
    "qwen2_vl": (Qwen2VLProcessor, modeling_qwen2_vl.Qwen2VLModel),
    "qwen2_5_vl": (Qwen2_5_VLProcessor, modeling_qwen2_5_vl.Qwen2_5_VLModel),
    "qwen3_vl": (Qwen3VLProcessor, modeling_qwen3_vl.Qwen3VLModel),
}
SIZES = {
    "text only": [],
    "one": [(300, 451)],
    "two": [(100, 200), (333, 77)],
    "four, mixed": [(64, 64), (500, 20), (1, 1), (224, 224)],
}


class ImagesOnly:
    """Stands in for the video processor, which transformers refuses to make without torchvision."""

    model_input_names = ()


def hf_processor(family: str, folder: Any, backend: str, monkeypatch: pytest.MonkeyPatch) -> Any:
    kind = FAMILIES[family][0]
    monkeypatch.setattr(kind, "check_argument_for_proper_class", lambda *_: None)
    return kind(
        AutoImageProcessor.from_pretrained(folder, backend=backend),
        AutoTokenizer.from_pretrained(folder),
        ImagesOnly(),
        chat_template=(folder / "chat_template.jinja").read_text(encoding="utf-8"),
    )


def hf_messages(row: dict[str, Any]) -> list[dict[str, Any]]:
    def part(item: dict[str, Any]) -> dict[str, Any]:
        return (
            item if item["type"] == "text" else {"type": "image", "image": Image.open(io.BytesIO(row[item["image"]]))}
        )

    return [{**m, "content": [part(item) for item in m["content"]]} for m in row["json"]["messages"]]


@pytest.mark.parametrize("sizes", SIZES.values(), ids=SIZES)
@pytest.mark.parametrize("backend", ["pil", "torchvision"])
@pytest.mark.parametrize("family", FAMILIES)
def test_tokens_and_pixels_equal_the_processors(family, backend, sizes, processor_dir, chat_row, monkeypatch):
    if backend == "torchvision":
        pytest.importorskip("torchvision", reason="torchvision is not installed: compares with its image backend")
    processor = hf_processor(family, processor_dir(family), backend, monkeypatch)
    encoder = TaskEncoder.from_processor(processor)
    row = chat_row(sizes)

    [made] = encoder.batch([encoder.encode_sample(row)])
    theirs = dict(
        processor.apply_chat_template(
            hf_messages(row), tokenize=True, return_dict=True, processor_kwargs={"return_tensors": "pt"}
        )
    )

    batch = encoder.collate([made], layout="padded")
    ours = {"input_ids": made.sample.input_ids[None], **{name: batch[name] for name in made.media_tensors}}
    ours["mm_token_type_ids"] = made.sample.token_tensors["mm_token_type_ids"][None]
    del theirs["attention_mask"]
    assert set(ours) == set(theirs)
    assert ("pixel_values" in ours) == bool(sizes)
    for name, tensor in theirs.items():
        assert torch.equal(ours[name], tensor.to(ours[name].dtype)), name


def rope_oracle(family: str, sample: Any, grids: torch.Tensor | None) -> torch.Tensor:
    """transformers' get_rope_index, called without a model."""
    model = FAMILIES[family][1]
    vision = SimpleNamespace(spatial_merge_size=2, tokens_per_second=2)
    stand_in = SimpleNamespace(config=SimpleNamespace(vision_config=vision))
    stand_in.get_vision_position_ids = model.get_vision_position_ids.__get__(stand_in)
    positions, _ = model.get_rope_index(
        stand_in,
        input_ids=sample.input_ids[None],
        mm_token_type_ids=sample.token_tensors["mm_token_type_ids"][None],
        image_grid_thw=grids,
    )
    return positions[:, 0]


@pytest.mark.parametrize("family", FAMILIES)
def test_positions_equal_get_rope_index_alone_and_in_a_pack(family, encoder_of, chat_row):
    encoder = encoder_of(family)
    shapes = [[(300, 451)], [], [(64, 64), (500, 20), (1, 1), (224, 224)], [(40, 3000)]]
    rows = encoder.batch([encoder.encode_sample(chat_row(sizes)) for sizes in shapes])
    expected = [rope_oracle(family, row.sample, row.media_tensors.get("image_grid_thw")) for row in rows]

    for row, positions in zip(rows, expected, strict=True):
        assert torch.equal(row.sample.position_ids, positions)
    pack = encoder.collate(rows, layout="packed")
    assert torch.equal(pack["position_ids"][:, 0], torch.cat(expected, dim=1))
    assert pack["position_ids"].dtype == torch.int64
