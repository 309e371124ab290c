"""Tiny real Qwen-VL models, samples made for them by hand, and collates written out the long way."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import transformers

from packloom.types import EncodedSample, Row

IMAGE, VIDEO, VISION_START, VISION_END, PAD = 1, 2, 3, 4, 0
VOCABULARY = 48

_TEXT = {
    "vocab_size": VOCABULARY,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "bos_token_id": None,
    "eos_token_id": None,
}
_VISION = {"depth": 2, "num_heads": 2, "hidden_size": 32, "out_hidden_size": 64, "intermediate_size": 48}
_ROPE = {"rope_type": "default", "rope_theta": 1e4}

FAMILIES = {
    "qwen2_vl": (
        "Qwen2VLForConditionalGeneration",
        {"rope_parameters": _ROPE | {"mrope_section": [2, 3, 3]}},
        {"depth": 2, "num_heads": 2, "embed_dim": 32, "hidden_size": 64, "mlp_ratio": 2},
    ),
    "qwen2_5_vl": (
        "Qwen2_5_VLForConditionalGeneration",
        {"rope_parameters": _ROPE | {"mrope_section": [2, 3, 3]}},
        _VISION | {"fullatt_block_indexes": [1]},
    ),
    "qwen3_vl": (
        "Qwen3VLForConditionalGeneration",
        {"rope_parameters": _ROPE | {"mrope_section": [4, 2, 2], "mrope_interleaved": True}, "head_dim": 16},
        _VISION | {"num_position_embeddings": 64, "deepstack_visual_indexes": [0, 1]},
    ),
}


@pytest.fixture(scope="session")
def models() -> dict[str, torch.nn.Module]:
    """Family → a float32 model with large weights, so that a leak between segments shows in the logits."""
    built = {}
    with torch.random.fork_rng():
        for seed, (family, (kind, text, vision)) in enumerate(FAMILIES.items()):
            torch.manual_seed(seed)
            model_class = getattr(transformers, kind)
            config = model_class.config_class(
                text_config=_TEXT | text,
                vision_config=vision,
                image_token_id=IMAGE,
                video_token_id=VIDEO,
                vision_start_token_id=VISION_START,
                vision_end_token_id=VISION_END,
            )
            for part in (config, config.text_config, config.vision_config):
                part.dtype = torch.float32
            model = model_class(config).float()
            for parameter in model.parameters():
                if parameter.ndim > 1:
                    torch.nn.init.normal_(parameter, std=parameter[0].numel() ** -0.5)
            built[family] = model
    return built


@pytest.fixture
def make_row(models: dict[str, torch.nn.Module]) -> Callable[..., Row]:
    """``make_row(family, 3, (4, 6), 5)``: 3 text tokens, an image of 4x6 patches, 5 text tokens, as one row.

    Text tokens are random, every second one is supervised, the first and the last of a row always. Positions come
    from the model's own get_rope_index.
    """

    def build(family: str, *pieces: int | tuple[int, int], seed: int = 0) -> Row:
        generator = torch.Generator().manual_seed(seed)
        model = models[family].model
        ids: list[int] = []
        for piece in pieces:
            if isinstance(piece, tuple):
                ids += [VISION_START, *[IMAGE] * (piece[0] * piece[1] // 4), VISION_END]
            else:
                ids += torch.randint(5, VOCABULARY, (piece,), generator=generator).tolist()
        tokens = torch.tensor(ids)
        loss_mask = (tokens > VISION_END) & (torch.arange(len(ids)) % 2 == 0)
        loss_mask[0] = loss_mask[-1] = True
        grids = [[1, *piece] for piece in pieces if isinstance(piece, tuple)]
        media = {}
        if grids:
            width = 3 * 2 * model.config.vision_config.patch_size**2
            patches = sum(h * w for _, h, w in grids)
            media["pixel_values"] = torch.randn(patches, width, generator=generator)
            media["image_grid_thw"] = torch.tensor(grids)
        types = (tokens == IMAGE).long()
        positions, _ = model.get_rope_index(tokens[None], types[None], image_grid_thw=media.get("image_grid_thw"))
        sample = EncodedSample(
            key=f"{family}-{seed}",
            input_ids=tokens,
            loss_mask=loss_mask,
            position_ids=positions[:, 0],
            token_tensors={"mm_token_type_ids": types},
        )
        return Row(sample=sample, media_tensors=media)

    return build


def _labels(row: Row, shift: str) -> torch.Tensor:
    own = torch.where(row.sample.loss_mask, row.sample.input_ids, -100)
    return own if shift == "none" else torch.cat([own[1:], torch.tensor([-100])])


def _finish(batch: dict[str, Any], rows: list[Row], shift: str) -> dict[str, Any]:
    for name in ("pixel_values", "image_grid_thw"):
        found = [row.media_tensors[name] for row in rows if name in row.media_tensors]
        if found:
            batch[name] = torch.cat(found)
    batch["loss_mask"] = (batch["labels"] != -100).float()
    return batch | {
        "label_shift": shift,
        "source_sample_num": len(rows),
        "num_input_tokens": sum(row.sample.num_tokens for row in rows),
        "num_loss_tokens": sum(int(row.sample.loss_mask[1:].sum()) for row in rows),
        "sample_keys": [row.sample.key for row in rows],
    }


def _pack(rows: list[Row], *, shift: str = "next_token", multiple: int = 1, length: int = 0) -> dict[str, Any]:
    parts: dict[str, list[torch.Tensor]] = {}
    logical, physical, used = [0], [0], 0
    for index, row in enumerate(rows):
        size = row.sample.num_tokens
        room = -(-size // multiple) * multiple
        if index == len(rows) - 1:
            room = max(room, length - used)
        used += room
        logical.append(logical[-1] + size)
        physical.append(used)
        gap = (0, room - size)
        pad = torch.nn.functional.pad
        for name, value in {
            "input_ids": pad(row.sample.input_ids, gap, value=PAD),
            "labels": pad(_labels(row, shift), gap, value=-100),
            "position_ids": pad(row.sample.position_ids, gap),
            "mm_token_type_ids": pad(row.sample.token_tensors["mm_token_type_ids"], gap),
            "pack_segment_ids": pad(torch.full((size,), index + 1), gap),
        }.items():
            parts.setdefault(name, []).append(value)
    batch: dict[str, Any] = {name: torch.cat(values, dim=-1).unsqueeze(-2) for name, values in parts.items()}
    batch["attention_mask"] = None
    batch["padding_mask"] = batch["pack_segment_ids"] == 0
    for side in ("q", "kv"):
        batch[f"cu_seqlens_{side}"] = torch.tensor(logical, dtype=torch.int32)
        if logical != physical:
            batch[f"cu_seqlens_{side}_padded"] = torch.tensor(physical, dtype=torch.int32)
        batch[f"max_seqlen_{side}"] = max(b - a for a, b in pairwise(physical))
    return _finish(batch | {"layout": "packed"}, rows, shift)


def _pad(rows: list[Row], *, shift: str = "next_token", left: bool = False) -> dict[str, Any]:
    width = max(row.sample.num_tokens for row in rows)

    def stack(tensors: list[torch.Tensor], value: int, dim: int = 0) -> torch.Tensor:
        gaps = [width - tensor.shape[-1] for tensor in tensors]
        sides = [(gap, 0) if left else (0, gap) for gap in gaps]
        padded = [torch.nn.functional.pad(t, side, value=value) for t, side in zip(tensors, sides, strict=True)]
        return torch.stack(padded, dim=dim)

    mask = stack([torch.ones_like(row.sample.input_ids) for row in rows], 0)
    batch = {
        "input_ids": stack([row.sample.input_ids for row in rows], PAD),
        "labels": stack([_labels(row, shift) for row in rows], -100),
        "position_ids": stack([row.sample.position_ids for row in rows], 0, dim=1),
        "mm_token_type_ids": stack([row.sample.token_tensors["mm_token_type_ids"] for row in rows], 0),
        "attention_mask": mask,
        "padding_mask": mask == 0,
        "pack_segment_ids": mask,
    }
    return _finish(batch | {"layout": "padded"}, rows, shift)


@pytest.fixture
def by_hand() -> SimpleNamespace:
    """``by_hand.pack(rows, shift=, multiple=, length=)`` and ``by_hand.pad(rows, shift=, left=)``: batches."""
    return SimpleNamespace(pack=_pack, pad=_pad)
