"""Videos through encode_sample and batch equal the whole Hugging Face processor, given the same sampled frames."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import transformers

from packloom import TaskEncoder
from packloom.config_video import VideoConfig

FAMILIES = {
    "qwen2_5_vl": "Qwen2_5_VLProcessor",
    "qwen3_vl": "Qwen3VLProcessor",
    "qwen3_5": "Qwen3VLProcessor",
    "glm4v": "Glm4vProcessor",
    "glm46v": "Glm46VProcessor",
}
#: (frames, rate, height, width)
CLIPS = [(20, 10, 64, 96), (7, 3, 150, 40), (1, 5, 90, 90)]


def whole_processor_of(family: str, encoder: TaskEncoder, folder: Path) -> Any:
    """The whole processor, around the tokenizer that the encoder has loaded."""
    return getattr(transformers, FAMILIES[family])(
        image_processor=encoder.parts.image_processor,
        tokenizer=encoder.parts.tokenizer,
        video_processor=transformers.AutoVideoProcessor.from_pretrained(folder),
    )


@pytest.mark.usefixtures("needs_torchvision")
@pytest.mark.parametrize("family", FAMILIES)
def test_ids_pixels_and_grids(family, encoder_of, processor_dir, clip, video_row, expected_of) -> None:
    encoder = encoder_of(family, video=VideoConfig(max_frames=8))
    processor = whole_processor_of(family, encoder, processor_dir(family))
    for number, (frames, rate, height, width) in enumerate(CLIPS):
        first = clip("mp4", frames=frames, rate=rate, height=height, width=width, noise=True)
        row = video_row(first, *[clip("mp4", frames=9, rate=2, height=64, width=64)] * number)
        sample = encoder.encode_sample(row)
        [made] = encoder.batch([sample])
        compare(encoder, made, expected_of(processor, encoder, row, sample))
        trained = encoder.parts.tokenizer.decode(sample.input_ids[sample.loss_mask])
        assert "A cat." in trained
        assert not any(word in trained for word in ("seconds", "Look", "<|video_pad|>", "<|image|>"))


def compare(encoder: TaskEncoder, row: Any, expected: dict[str, torch.Tensor]) -> None:
    """Every tensor of the processor is there, bit for bit, once the bytes of the pixels are looked up."""
    sample = row.sample
    ids = expected.pop("input_ids")[0]
    assert sample.input_ids[: len(ids)].tolist() == ids.tolist()
    assert sample.num_tokens - len(ids) in (0, 1)  # one: a stop token that the template leaves out
    types = expected.pop("mm_token_type_ids")[0]
    assert sample.token_tensors["mm_token_type_ids"][: len(ids)].tolist() == types.tolist()
    expected.pop("attention_mask")
    assert row.media_tensors.keys() == expected.keys()
    assert row.media_tensors["pixel_values_videos"].dtype == torch.uint8
    batch = encoder.collate([row], layout="padded")
    for name, tensor in expected.items():
        assert tensor.dtype == batch[name].dtype, name
        assert torch.equal(tensor, batch[name]), name


@pytest.mark.usefixtures("needs_torchvision")
def test_settings_of_a_loaded_processor_count_as_those_of_its_files(encoder_of, processor_dir, clip, video_row) -> None:
    encoder = encoder_of("qwen3_vl", video=VideoConfig(max_frames=8))
    whole = whole_processor_of("qwen3_vl", encoder, processor_dir("qwen3_vl"))
    whole.chat_template = encoder.parts.chat_template
    row = video_row(clip("mp4", frames=20))
    made = TaskEncoder.from_processor(whole, model_type="qwen3_vl", video=VideoConfig(max_frames=8)).encode_sample(row)
    assert made.media[0].grid_thw == encoder.encode_sample(row).media[0].grid_thw == (2, 4, 6)
    whole.video_processor.size = {"shortest_edge": 200_000, "longest_edge": 400_000}
    larger = TaskEncoder.from_processor(whole, model_type="qwen3_vl", video=VideoConfig(max_frames=8))
    assert larger.encode_sample(row).media[0].num_patches > made.media[0].num_patches
