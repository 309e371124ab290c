"""Faults that others shipped, section 5.5 of the failure kinds: what stands in no other test, by inputs of our own."""

from __future__ import annotations

import dataclasses
import re

import pytest

from packloom.config import SampleConfig
from packloom.config_video import VideoConfig
from packloom.errors import MediaError

SMALL = VideoConfig(fps=2.0, min_pixels=4096, max_pixels=40_000)


def times_of(encoder, sample) -> list[str]:
    return re.findall(r"<([\d.]+) seconds>", encoder.parts.tokenizer.decode(sample.input_ids))


def test_times_follow_temporal_patches_not_spatial_merging(encoder_of, clip, video_row) -> None:
    """Kind 74: here four frames make a temporal patch, and two by two patches a token."""
    encoder = encoder_of("qwen3_vl", video=SMALL)
    settings = {**encoder.parts.video_settings, "temporal_patch_size": 4, "merge_size": 2}
    config = SampleConfig(video=dataclasses.replace(SMALL, fps=1.0))
    other = type(encoder)(dataclasses.replace(encoder.parts, video_settings=settings), config=config)
    sample = other.encode_sample(video_row(clip("mp4", frames=8, rate=1)))
    assert sample.media[0].grid_thw[0] == 2
    assert times_of(other, sample) == ["1.5", "5.5"]
    [row] = other.batch([sample])
    assert row.media_tensors["pixel_values_videos"].shape[1:] == (3, 4 * 16, 16)


@pytest.mark.parametrize("family", ["qwen3_vl", "glm46v"])
def test_a_number_of_frames_without_a_rate_has_one_time_for_each_grid_row(family, encoder_of, clip, video_row) -> None:
    """Kind 78: 32 frames of 60, so 16 rows and 16 times."""
    encoder = encoder_of(family, video=VideoConfig(num_frames=32, min_pixels=4096, max_pixels=400_000))
    [row] = encoder.batch([encoder.encode_sample(video_row(clip("mp4", frames=60, rate=2)))])
    assert row.media_tensors["video_grid_thw"][0, 0] == 16
    assert len(row.sample.media[0].frames.indices) == 32
    text = encoder.parts.tokenizer.decode(row.sample.input_ids)
    assert text.count(" seconds") == 16
    assert row.sample.media[0].frames.fps == pytest.approx(32 / 30)


def test_frames_that_were_taken_before_are_not_taken_apart_again(encoder_of, picture) -> None:
    """Kind 77: 46 frames, two a second, asked for at two a second: all of them, and the times of 23 seconds."""
    frames = {f"{number}.png": picture(28, 28) for number in range(46)}
    content = [{"type": "video", "video": list(frames), "fps": 2.0}, {"type": "text", "text": "What?"}]
    messages = [{"role": "user", "content": content}, {"role": "assistant", "content": "A cat."}]
    encoder = encoder_of("qwen3_vl", video=SMALL)
    sample = encoder.encode_sample({"__key__": "k", "json": {"messages": messages}, **frames})
    assert sample.media[0].frames.indices == tuple(range(46))
    times = times_of(encoder, sample)
    assert (len(times), times[0], times[-1]) == (23, "0.2", "22.2")


@pytest.mark.parametrize("family", ["llava", "llava_next"])
def test_no_family_leaves_a_video_out(family, encoder_of, clip, video_row) -> None:
    """Kind 49, with the reason in the message."""
    with pytest.raises(MediaError, match="take no videos yet") as caught:
        encoder_of(family).encode_sample(video_row(clip("mp4", frames=3)))
    assert caught.value.code == "media.unsupported"


def test_bounds_that_a_family_does_not_know_are_refused(encoder_of) -> None:
    with pytest.raises(ValueError, match="cap_pixels_per_frame"):
        encoder_of("glm4v", video=VideoConfig(cap_pixels_per_frame=True))
