"""Which frames are taken: by hand, and against each video processor's own ``sample_frames``."""

from __future__ import annotations

import importlib
from typing import Any

import numpy as np
import pytest

from packloom.config_video import VideoConfig
from packloom.errors import ConfigError
from packloom.task_encoders.video_sampling import (
    Sampling,
    by_duration,
    even_ends,
    frames_of,
    from_start,
    sampling_of,
    whole_groups,
)


def sampling(**changes: Any) -> Sampling:
    return Sampling(**{"fps": 2.0, "num_frames": None, "min_frames": 4, "max_frames": 768, "group": 2, **changes})


def test_whole_temporal_patches() -> None:
    assert whole_groups(30, 10.0, sampling()) == [0, 5, 10, 15, 20, 25]
    assert whole_groups(10, 10.0, sampling()) == [0, 2, 5, 7]
    assert whole_groups(600, 10.0, sampling(max_frames=4)) == [0, 150, 300, 450]
    assert whole_groups(3, 10.0, sampling()) == [0, 1]
    assert whole_groups(1, 10.0, sampling()) == [0]
    assert whole_groups(9, 10.0, sampling(fps=None, num_frames=4)) == [0, 2, 4, 6]
    assert whole_groups(3, 10.0, sampling(fps=None, num_frames=32)) == [0, 1]


def test_first_and_last_frame() -> None:
    assert even_ends(30, 10.0, sampling()) == [0, 6, 12, 17, 23, 29]
    assert even_ends(3, 10.0, sampling()) == [0, 1, 2]
    assert even_ends(1, 10.0, sampling()) == [0]
    assert even_ends(50, 10.0, sampling(fps=None, num_frames=1)) == [0]


def test_steps_of_time() -> None:
    assert from_start(30, 10.0, sampling()) == [0, 5, 10, 15, 20, 25]
    assert from_start(5, 10.0, sampling()) == [0, 0]
    assert from_start(30, 10.0, sampling(max_frames=3)) == [0, 10, 25, 25]


def test_the_rate_that_is_carried_is_the_one_that_was_taken() -> None:
    """failure-kinds 77 and 78: never the rate that was asked for, and one source for number and times."""
    indices = whole_groups(600, 10.0, sampling(max_frames=32))
    frames = frames_of(indices, np.arange(600) / 10.0, 10.0)
    assert len(frames.indices) == len(frames.seconds) == 32
    assert frames.fps == pytest.approx(32 / 60)
    assert frames.seconds[1] == indices[1] / 10.0


PROCESSORS = {
    "qwen2_vl.video_processing_qwen2_vl:Qwen2VLVideoProcessor": (whole_groups, 2.0, 4, 768),
    "qwen3_vl.video_processing_qwen3_vl:Qwen3VLVideoProcessor": (even_ends, 2.0, 4, 768),
    "glm4v.video_processing_glm4v:Glm4vVideoProcessor": (from_start, 2.0, 1, 1 << 30),
    "glm46v.video_processing_glm46v:Glm46VVideoProcessor": (by_duration, None, 1, 1 << 30),
}


@pytest.mark.usefixtures("needs_torchvision")
@pytest.mark.parametrize("name", PROCESSORS)
def test_equal_to_the_video_processor(name) -> None:
    from transformers.video_utils import VideoMetadata  # noqa: PLC0415 - needs torchvision in part

    module, _, kind = name.partition(":")
    processor = getattr(importlib.import_module(f"transformers.models.{module}"), kind)()
    rule, fps, low, high = PROCESSORS[name]
    mine = sampling_of(VideoConfig(), fps=fps, min_frames=low, max_frames=high, group=2)
    mine = Sampling(**{**{f: getattr(mine, f) for f in mine.__dataclass_fields__}, "max_seconds": 300.0})
    compared = 0
    for total in (2, 3, 5, 17, 30, 100, 299, 301, 1000, 9001, 40000):
        for rate in (1.0, 7.5, 24.0, 30000 / 1001, 60.0):
            metadata = VideoMetadata(total_num_frames=total, fps=rate, duration=total / rate)
            asked = {} if rule is by_duration else {"fps": 2.0}
            expected = [int(index) for index in processor.sample_frames(metadata, **asked)]
            if expected:  # none: the processor fails on so short a clip
                assert rule(total, rate, mine) == expected, (total, rate)
                compared += 1
    assert compared > 40


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"fps": 0.0}, "fps must be positive"),
        ({"fps": 2.0, "num_frames": 8}, "exclude each other"),
        ({"num_frames": 8, "max_frames": 4}, "they do nothing"),
        ({"min_frames": 9, "max_frames": 4}, "min_frames 9 is above"),
        ({"rules": "newest"}, "rules must be one of"),
        ({"max_frames": 2.5}, "max_frames must be"),
    ],
)
def test_settings_that_cannot_work(settings, words) -> None:
    with pytest.raises(ConfigError, match=words):
        VideoConfig(**settings)
