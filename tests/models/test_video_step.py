"""A training step on videos: real models read the tensors, and a pack of mixed rows trains as the rows do alone."""

from __future__ import annotations

import io
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from packloom import TaskEncoder
from packloom.config import SampleConfig
from packloom.config_video import VideoConfig


def png(seed: int, height: int, width: int) -> bytes:
    buffer = io.BytesIO()
    noise = np.random.default_rng(seed).integers(0, 256, (height, width, 3), dtype=np.uint8)
    Image.fromarray(noise).save(buffer, "PNG", compress_level=1)
    return buffer.getvalue()


def row(key: str, *, frames: int = 0, images: int = 0) -> dict[str, Any]:
    """A raw row with a video of so many frames, given as images, and images beside it."""
    parts = {f"frame{number}.png": png(number, 56, 84) for number in range(frames)}
    still = {f"still{number}.png": png(90 + number, 84, 56) for number in range(images)}
    video = [{"type": "video", "video": list(parts), "fps": 4}] if frames else []
    question = [*video, *({"type": "image", "image": name} for name in still), {"type": "text", "text": "What is it?"}]
    answer = [{"type": "text", "text": f"Noise, {frames} frames of it."}]
    messages = [{"role": "user", "content": question}, {"role": "assistant", "content": answer}]
    return {"__key__": key, "json": {"messages": messages}, **parts, **still}


VIDEO = {
    "qwen2_5_vl": VideoConfig(fps=4.0, min_pixels=784, max_pixels=40_000),
    "glm4v": VideoConfig(fps=4.0, min_pixels=784, max_pixels=40_000),
    "llava_onevision": VideoConfig(num_frames=2),
    "smolvlm": VideoConfig(num_frames=2),
    "internvl3": VideoConfig(num_frames=2),
}


def encoder_for(family: str, folder: Path) -> TaskEncoder:
    """Frames of InternVL have the size of its tiles here, as its model wants; the folder's have not."""
    encoder = TaskEncoder.from_pretrained(folder)
    parts = encoder.parts
    if family == "internvl3":
        parts = replace(parts, video_settings={**(parts.video_settings or {}), "size": {"height": 448, "width": 448}})
    if family == "smolvlm":  # a still image is one tile, not 17
        images = parts.image_processor
        parts = replace(parts, image_processor=images.from_dict({**images.to_dict(), "do_image_splitting": False}))
    return type(encoder)(parts, config=SampleConfig(video=VIDEO[family]))


@pytest.mark.parametrize("family", VIDEO)
def test_a_pack_of_videos_images_and_text_trains_as_its_rows(family, processor_dir, family_model, train_step) -> None:
    encoder = encoder_for(family, processor_dir(family))
    model = family_model(family)
    raws = [row("video", frames=5), row("text")]
    if family in ("qwen2_5_vl", "glm4v"):
        raws.append(row("other", frames=4))
    if family != "glm4v":  # whose model takes either images or videos in one call
        raws.append(row("mixed", frames=4, images=1))
    if family == "qwen2_5_vl":
        raws.append(row("image", images=1))
    rows = encoder.batch([encoder.encode_sample(raw) for raw in raws])
    videos = [item for one in rows for item in one.sample.media if item.media.kind == "video"]
    assert len(videos) == (3 if family == "qwen2_5_vl" else 2)
    alone = [train_step(model, encoder.collate([item], layout="padded")) for item in rows]
    loss, gradients = train_step(model, encoder.collate(rows, layout="packed"))
    torch.testing.assert_close(loss, sum(item[0] for item in alone), rtol=1e-4, atol=0)
    tower = [name for name in gradients if "visual" in name or "vision" in name]
    assert tower
    whole = torch.stack([gradient.norm() for gradient in gradients.values()]).norm()
    for name, gradient in gradients.items():
        expected = sum(item[1][name] for item in alone if name in item[1])
        assert (gradient - expected).norm() <= 1e-4 * expected.norm() + 1e-6 * whole, name
