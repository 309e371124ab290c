"""Tiny real models: of all families, and Qwen-VL ones with rows made for them without a processor."""

from __future__ import annotations

import importlib.util
import multiprocessing
import uuid
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
import transformers

from packloom.models import forward_step
from packloom.types import EncodedSample, Row

IMAGE, VIDEO, VISION_START, VISION_END = 1, 2, 3, 4  # 0 is the padding
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
def family_model() -> Callable[[str], torch.nn.Module]:
    """``family_model("gemma3")``: a tiny real model that takes what that family's published processor makes."""
    spec = importlib.util.spec_from_file_location("family_models", Path(__file__).with_name("family_models.py"))
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.build


@pytest.fixture(scope="session")
def train_step() -> Callable[..., tuple[torch.Tensor, dict[str, torch.Tensor]]]:
    """``train_step(model, batch)``: the loss and each gradient by its parameter's name."""

    def make(model: torch.nn.Module, batch: Any) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
        model.zero_grad(set_to_none=True)
        output, loss_func = forward_step(iter([batch]), model)
        loss, _, _ = loss_func(output)
        loss.backward()
        return loss.detach(), {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}

    return make


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


def _rank(run: Callable[[int], None], rank: int, world_size: int, store: Path) -> None:
    timeout = timedelta(seconds=60)
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=world_size, timeout=timeout)
    dist.barrier()  # a rank that is done at once would hang up on one that still connects
    run(rank)
    dist.destroy_process_group()


@pytest.fixture
def in_ranks(tmp_path: Path) -> Callable[..., None]:
    """``in_ranks(2, run)`` calls ``run(rank)`` in two forked processes with a gloo group, and wants both to succeed."""

    def start(world_size: int, run: Callable[[int], None]) -> None:
        store = tmp_path / f"store-{uuid.uuid4().hex}"
        context = multiprocessing.get_context("fork")
        ranks = [context.Process(target=_rank, args=(run, rank, world_size, store)) for rank in range(world_size)]
        for process in ranks:
            process.start()
        for process in ranks:
            process.join(timeout=120)
        hanging = [process for process in ranks if process.is_alive()]
        for process in hanging:
            process.kill()
        assert not hanging, "a rank hangs"
        assert [process.exitcode for process in ranks] == [0] * world_size

    return start
