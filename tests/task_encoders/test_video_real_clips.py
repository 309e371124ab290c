"""Clips that cameras and editors made, from the package gradio where it is installed: equal to the whole processor."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers

from packloom.config_video import VideoConfig
from packloom.task_encoders.video import decode_frames, read_clip

FAMILIES = {
    "qwen2_5_vl": ("Qwen2_5_VLProcessor", VideoConfig(max_frames=5)),
    "qwen3_vl": ("Qwen3VLProcessor", VideoConfig(max_frames=5)),
    "glm46v": ("Glm46VProcessor", VideoConfig(fps=0.5)),
    "llava_onevision": ("LlavaOnevisionProcessor", VideoConfig(num_frames=3)),
    "smolvlm": ("SmolVLMProcessor", VideoConfig(fps=0.5, max_frames=3)),
    "internvl3": ("InternVLProcessor", VideoConfig(num_frames=3)),
}


@pytest.fixture(scope="module")
def real_clip() -> Callable[[str], bytes]:
    """``real_clip("a.mp4")``; the package is looked for and not imported."""
    spec = importlib.util.find_spec("gradio")
    folder = Path(spec.origin).parent / "media_assets" / "videos" if spec and spec.origin else None
    if folder is None or not folder.is_dir():
        pytest.skip("gradio, whose package holds real clips, is not installed: pip install --no-deps gradio")
    pytest.importorskip("av", reason="PyAV is not installed: reads videos")
    return lambda name: (folder / name).read_bytes()


@pytest.mark.usefixtures("needs_torchvision")
@pytest.mark.parametrize("name", ["a.mp4", "b.avi", "world.mp4"])
@pytest.mark.parametrize("family", FAMILIES)
def test_real_clips_equal_the_processor(family, name, encoder_of, processor_dir, real_clip, video_row) -> None:
    kind, video = FAMILIES[family]
    encoder = encoder_of(family, video=video)
    assert encoder.video_rule.processor is None
    row = video_row(real_clip(name), kind=name.split(".")[1])
    sample = encoder.encode_sample(row)
    [item] = sample.media
    clip = read_clip(item.media)
    whole = getattr(transformers, kind).from_pretrained(processor_dir(family), tokenizer=encoder.parts.tokenizer)
    expected = dict(
        whole(
            text=[encoder.template.render(encoder.cooker(row))],
            videos=[decode_frames(item.media, clip, item.frames.indices).transpose(0, 3, 1, 2)],
            video_metadata=[
                {
                    "total_num_frames": clip.num_frames,
                    "fps": clip.fps,
                    "duration": clip.duration,
                    "frames_indices": list(item.frames.indices),
                }
            ],
            do_sample_frames=False,
            return_tensors="pt",
        )
    )
    ids = expected["input_ids"][0]
    assert sample.input_ids[: len(ids)].tolist() == ids.tolist()
    batch: dict[str, Any] = dict(encoder.collate(encoder.batch([sample]), layout="padded"))
    for key in encoder.video_rule.model_keys:
        assert torch.equal(batch[key], torch.as_tensor(expected[key])), key
