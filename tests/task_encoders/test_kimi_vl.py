"""Kimi-VL: text rows; images only with the checkpoint's own image processor, whose geometry is rebuilt here by hand."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from transformers import AutoTokenizer

from packloom import TaskEncoder
from packloom.errors import CapabilityError, MediaError, ProcessorError
from packloom.task_encoders.kimi import KimiVLTaskEncoder
from packloom.task_encoders.kimi_vl_images import KimiVLImageRule
from packloom.task_encoders.processors import ProcessorParts, parts_of
from packloom.testing import check_masks


class KimiVLImageProcessor:
    """What the checkpoint's class of this name does, on Pillow and numpy: shrink, pad, cut into 14-pixel patches."""

    patch_size, pad_input, in_token_limit, merge_kernel_size = 14, True, 64, [2, 2]

    def __call__(self, images: Sequence[Image.Image], return_tensors: str) -> dict[str, torch.Tensor]:
        assert return_tensors == "pt"
        patches, grids = [], []
        for image in images:
            assert isinstance(image, Image.Image)  # a list in a list is refused by the real one
            pixels = self._resized(image)
            rows, columns = pixels.shape[0] // 14, pixels.shape[1] // 14
            if rows >= 512 or columns >= 512:
                raise ValueError("Exceed pos emb")
            cut = pixels.reshape(rows, 14, columns, 14, 3).transpose(0, 2, 4, 1, 3)
            patches.append(torch.from_numpy(cut.reshape(-1, 3, 14, 14).astype(np.float32) / 255))
            grids.append((rows, columns))
        return {"pixel_values": torch.cat(patches), "image_grid_hws": torch.tensor(grids)}

    def _resized(self, image: Image.Image) -> np.ndarray:
        width, height = image.size
        count = (width // 14) * (height // 14)
        if count > self.in_token_limit:
            scale = math.sqrt(self.in_token_limit / count)
            image = image.resize((int(width * scale), int(height * scale)), Image.Resampling.BICUBIC)
        pixels = np.asarray(image)
        down, right = (-side % 28 for side in pixels.shape[:2])
        return np.pad(pixels, ((0, down), (0, right), (0, 0)))


@pytest.fixture(scope="module")
def parts(processor_dir: Callable[[str], Path], shared_dir: Path) -> ProcessorParts:
    """Kimi-VL's template on a tokenizer that has its tokens."""
    tokenizer = AutoTokenizer.from_pretrained(processor_dir("kimi_k25"), local_files_only=True)
    tokenizer.add_tokens(["<|media_start|>"], special_tokens=True)
    path = shared_dir / "processors/_templates/original/moonshotai-Kimi-VL-A3B-Instruct.jinja"
    return parts_of(tokenizer, chat_template=path.read_text(encoding="utf-8"))


@pytest.fixture
def encoder(parts: ProcessorParts) -> TaskEncoder:
    return KimiVLTaskEncoder(dataclasses.replace(parts, image_processor=KimiVLImageProcessor()))


def test_text_rows(parts: ProcessorParts, chat_row: Callable[..., Any]) -> None:
    parts.tokenizer.chat_template = parts.chat_template
    encoder = TaskEncoder.from_processor(parts.tokenizer, model_type="kimi_vl")
    sample = encoder.encode_sample(chat_row([]))
    decode = encoder.parts.tokenizer.decode
    assert decode(sample.input_ids[sample.loss_mask]) == "A cat.<|im_end|>Yes 🙂.<|im_end|>"
    assert decode(sample.input_ids).startswith("<|im_system|>system<|im_middle|>You are a helpful assistant<|im_end|>")
    batch = encoder.collate(encoder.batch([sample, sample]), layout="packed")
    assert batch["cu_seqlens_q"].tolist() == [0, sample.num_tokens, 2 * sample.num_tokens]
    with pytest.raises(MediaError, match="is image, which this encoder"):
        encoder.encode_sample(chat_row([(30, 30)]))


def test_rows_with_images(encoder: TaskEncoder, chat_row: Callable[..., Any]) -> None:
    sample = encoder.encode_sample(chat_row([(30, 60), (300, 451)]))
    assert [medium.num_tokens for medium in sample.media] == [2 * 3, 4 * 5]
    text = encoder.parts.tokenizer.decode(sample.input_ids)
    assert f"Look: <|media_start|>image<|media_content|>{'<|media_pad|>' * 6}<|media_end|> number 0, " in text
    assert text.count("<|media_pad|>") == 26
    [row] = encoder.batch([sample])
    assert row.media_tensors["image_grid_hws"].tolist() == [[4, 6], [8, 10]]
    assert row.media_tensors["pixel_values"].shape == (24 + 80, 3, 14, 14)
    check_masks(encoder).raise_if_failed()


def test_predicted_grids_are_the_processors() -> None:
    processor = KimiVLImageProcessor()
    rule = KimiVLImageRule(patch_size=14, merge_size=2, max_patches=64)
    sides = [14, 27, 28, 29, 55, 56, 57, 111, 112, 113, 500, 3001]
    for height, width in [(1, 1), (1, 900), *((a, b) for a in sides for b in sides)]:
        made = processor([Image.new("RGB", (width, height))], return_tensors="pt")
        layout = rule.measure(height, width)
        assert rule.produced(made, 0) == rule.expected(layout), (height, width)
        assert layout.num_patches == made["pixel_values"].shape[0] == layout.runs[0] * 4
    with pytest.raises(MediaError, match=r"14x7200 pixels makes 516x2 patches"):
        dataclasses.replace(rule, max_patches=4096).measure(7200, 14)


def test_other_image_processors_are_refused(parts: ProcessorParts) -> None:
    with pytest.raises(CapabilityError, match=r"transformers has no image processor for Kimi-VL.*trust_remote_code"):
        KimiVLTaskEncoder(dataclasses.replace(parts, image_processor=SimpleNamespace()))
    cropping = KimiVLImageProcessor()
    cropping.pad_input = False
    with pytest.raises(CapabilityError, match="pad_input is off"):
        KimiVLTaskEncoder(dataclasses.replace(parts, image_processor=cropping))
    oblong = KimiVLImageProcessor()
    oblong.merge_kernel_size = [2, 1]
    with pytest.raises(ProcessorError, match="merge_kernel_size is 2x1"):
        KimiVLTaskEncoder(dataclasses.replace(parts, image_processor=oblong))
