"""Videos of Qwen2.5-Omni against transformers' whole processor; their positions: test_audio_families."""

from __future__ import annotations

import dataclasses

import pytest
import torch
import transformers

from packloom.config_video import VideoConfig
from packloom.task_encoders.qwen_audio import Qwen2_5OmniTaskEncoder

pytest.importorskip("av", reason="PyAV is not installed: reads videos")


@pytest.mark.usefixtures("needs_torchvision")
def test_ids_pixels_grids_and_seconds(hearing, video_row, clip, expected_of) -> None:
    """At two frames a second, which the processor takes for the rate whatever was sampled."""
    encoder = hearing("qwen2_5_omni")
    processor = transformers.Qwen2_5OmniProcessor(
        image_processor=encoder.parts.image_processor,
        video_processor=transformers.Qwen2VLVideoProcessor(),
        feature_extractor=transformers.WhisperFeatureExtractor(feature_size=128, chunk_length=300),
        tokenizer=encoder.parts.tokenizer,
        chat_template=encoder.parts.chat_template,
    )
    clips = [clip("mp4", frames=20, rate=4, noise=True), clip("mp4", frames=40, rate=10, height=150, width=40)]
    row = video_row(*clips)
    [made] = encoder.batch([encoder.encode_sample(row)])
    expected = expected_of(processor, encoder, row, made.sample)
    assert torch.equal(made.sample.input_ids, expected.pop("input_ids")[0])
    expected.pop("attention_mask")
    seconds = expected.pop("video_second_per_grid")
    assert made.media_tensors["video_second_per_grid"].tolist() == list(map(float, seconds)) == [1.0, 1.0]
    assert made.media_tensors.keys() == expected.keys() | {"video_second_per_grid"}
    batch = encoder.collate([made], layout="padded")
    for name, tensor in expected.items():
        assert torch.equal(batch[name], tensor), name


def test_seconds_are_those_of_the_frames_that_were_taken(hearing, video_row, clip) -> None:
    """The processor says 1.0 here: it does not know the rate."""
    encoder = hearing("qwen2_5_omni", video=VideoConfig(fps=2.0, max_frames=6))
    [row] = encoder.batch([encoder.encode_sample(video_row(clip("mp4", frames=60, rate=2)))])
    assert row.media_tensors["video_second_per_grid"].tolist() == [10.0]
    places = row.sample.position_ids[0, row.sample.input_ids == encoder.chat.run_ids["video"]]
    assert (places - places[0]).unique().tolist() == [0, 250, 500]


def test_the_size_is_that_of_the_processors_calls(hearing, video_row, clip) -> None:
    """It passes its own, whatever the settings of its video processor are."""
    encoder = hearing("qwen2_5_omni")
    settings = {**(encoder.parts.video_settings or {}), "size": {"shortest_edge": 784, "longest_edge": 1568}}
    other = Qwen2_5OmniTaskEncoder(dataclasses.replace(encoder.parts, video_settings=settings))
    row = video_row(clip("mp4", frames=4, rate=2, height=90, width=90))
    grids = [made.encode_sample(row).media[0].grid_thw for made in (encoder, other)]
    assert grids[0] == grids[1] == (2, 24, 24)
