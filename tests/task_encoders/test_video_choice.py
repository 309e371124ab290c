"""How the pixels of videos are made: as bytes where they equal transformers' own processor, else by that processor."""

from __future__ import annotations

import logging
import pickle
from typing import Any

import numpy as np
import pytest
import torch

from packloom.config import SampleConfig
from packloom.config_video import VideoConfig
from packloom.models import route
from packloom.pixels import expand_pixels
from packloom.task_encoders.video_processors import load_video_processor
from packloom.types import Frames

FAMILIES = ["qwen2_vl", "qwen2_5_vl", "qwen3_vl", "glm4v", "glm46v", "llava_onevision", "smolvlm", "internvl3"]
SMALL = {
    "llava_onevision": VideoConfig(num_frames=3),
    "smolvlm": VideoConfig(num_frames=3),
    "internvl3": VideoConfig(num_frames=3),
}
KEY = {"smolvlm": "pixel_values", "internvl3": "pixel_values"}


def video_of(family: str) -> VideoConfig:
    return SMALL.get(family, VideoConfig(max_frames=4))


def remade(encoder: Any, **changes: Any) -> Any:
    """The same encoder with other settings, made anew: what is decided at construction is decided again."""
    config = SampleConfig(**{"video": encoder.config.video, **changes})
    return type(encoder)(encoder.parts, config=config)


@pytest.mark.usefixtures("needs_torchvision")
@pytest.mark.parametrize("family", FAMILIES)
def test_the_fast_path_and_transformers_own_make_the_same(family, encoder_of, clip, video_row) -> None:
    encoder = encoder_of(family, video=video_of(family))
    assert encoder.video_rule.processor is None  # the probes at construction found no difference
    exact = remade(encoder, media="exact_hf")
    assert exact.video_rule.processor is not None
    row = video_row(clip("mp4", frames=11, height=150, width=222, noise=True))
    batches = [one.collate(one.batch([one.encode_sample(row)]), layout="padded") for one in (encoder, exact)]
    for name in encoder.video_rule.model_keys:
        assert batches[0][name].dtype == batches[1][name].dtype, name
        assert torch.equal(batches[0][name], batches[1][name]), name
    assert "pixel_table_videos" not in batches[1]


@pytest.mark.usefixtures("needs_torchvision")
@pytest.mark.parametrize("family", ["qwen2_5_vl", "llava_onevision"])
def test_a_processor_that_does_otherwise_is_noticed_and_followed(
    family, encoder_of, clip, video_row, caplog, monkeypatch
) -> None:
    encoder = encoder_of(family, video=video_of(family))
    kind = type(load_video_processor(encoder.parts, encoder.video_rule.class_name))
    real = kind.rescale_and_normalize
    monkeypatch.setattr(kind, "rescale_and_normalize", lambda self, *given: real(self, *given) + 0.25)
    with caplog.at_level(logging.WARNING):
        other = remade(encoder)
    assert "values differ by up to 0.25" in caplog.text
    row = video_row(clip("mp4", frames=4))
    plain, brighter = (
        one.collate(one.batch([one.encode_sample(row)]), layout="padded")["pixel_values_videos"]
        for one in (encoder, other)
    )
    assert torch.allclose(brighter, plain + 0.25)


@pytest.mark.usefixtures("needs_torchvision")
def test_transformers_own_processor_obeys_the_settings(encoder_of, clip, video_row) -> None:
    """Pixel bounds and the cap reach it with the call; else the counts would differ and the row be refused."""
    row = video_row(clip("mp4", frames=12, height=200, width=300))
    settings = {
        "qwen2_5_vl": VideoConfig(max_frames=8, max_pixels=30_000, min_pixels=2_000, cap_pixels_per_frame=True),
        "qwen3_vl": VideoConfig(max_frames=8, max_pixels=60_000, min_pixels=5_000, cap_pixels_per_frame=True),
        "glm4v": VideoConfig(max_frames=8, max_pixels=60_000, min_pixels=5_000),
    }
    for family, video in settings.items():
        encoder = remade(encoder_of(family), video=video, media="exact_hf")
        assert encoder.video_rule.processor is not None
        [made] = encoder.batch([encoder.encode_sample(row)])
        fast = remade(encoder_of(family), video=video)
        assert torch.equal(
            fast.collate(fast.batch([fast.encode_sample(row)]), layout="padded")["pixel_values_videos"],
            made.media_tensors["pixel_values_videos"],
        )


def test_without_torchvision_exact_means_floats_of_the_own_path(encoder_of, clip, video_row, monkeypatch) -> None:
    monkeypatch.setattr("packloom.task_encoders.video_choice.load_video_processor", lambda parts, name: None)
    encoder = encoder_of("qwen3_vl", video=video_of("qwen3_vl"))
    row = video_row(clip("mp4", frames=6))
    exact = remade(encoder, media="exact_hf")
    assert exact.video_rule.processor is None
    [floats], [made] = (one.batch([one.encode_sample(row)]) for one in (exact, remade(encoder)))
    assert floats.media_tensors["pixel_values_videos"].dtype == torch.float32
    assert made.media_tensors["pixel_values_videos"].dtype == torch.uint8
    batch = encoder.collate([made], layout="padded")
    assert torch.equal(batch["pixel_values_videos"], floats.media_tensors["pixel_values_videos"])


def test_bytes_of_images_and_videos_travel_with_a_table_each(encoder_of, clip, video_row, chat_row) -> None:
    encoder = encoder_of("qwen3_vl", video=video_of("qwen3_vl"))
    table = encoder.video_rule.table
    assert table[0, [0, 255]].tolist() == [-1.0, 1.0]
    rows = encoder.batch([encoder.encode_sample(raw) for raw in (chat_row([(64, 96)]), video_row(clip(frames=3)))])
    batch = encoder.collate(rows, expand_pixels=False)
    pixels = batch["pixel_values_videos"]
    assert pixels.dtype == batch["pixel_values"].dtype == torch.uint8
    # a patch: two frames of 16 x 16, one below the other, in each channel
    assert pixels.shape == (int(batch["video_grid_thw"].prod()), 3, 32, 16)
    floats = expand_pixels(batch)
    assert not {"pixel_table", "pixel_table_videos", "pixel_frames_videos"} & floats.keys()
    by_hand = table.numpy()[0][pixels.numpy().astype(np.int64)].reshape(len(pixels), -1)
    assert np.array_equal(floats["pixel_values_videos"].numpy(), by_hand)
    for stage in ("first", "all"):
        assert torch.equal(route(batch, stage)["pixel_values_videos"], floats["pixel_values_videos"])
    assert not {"pixel_table_videos", "pixel_values_videos"} & route(batch, "middle").keys()


@pytest.mark.parametrize("family", FAMILIES)
def test_a_rule_can_be_sent_to_a_worker(family, encoder_of) -> None:
    rule = encoder_of(family, video=video_of(family)).video_rule
    sent = pickle.loads(pickle.dumps(rule))
    frames = Frames(indices=(0, 3), seconds=(0.0, 1.5), fps=1.0, duration=2.0)
    assert sent.measure("0.mp4", 64, 96, frames) == rule.measure("0.mp4", 64, 96, frames)
    frame = np.random.default_rng(0).integers(0, 256, (64, 96, 3), dtype=np.uint8)
    assert np.array_equal(sent.shrink(frame, 2), rule.shrink(frame, 2))
