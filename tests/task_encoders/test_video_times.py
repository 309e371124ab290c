"""Which frame is which, when it is shown and which way up, in files whose headers say less than the truth."""

from __future__ import annotations

import dataclasses
import struct

import numpy as np
import pytest

from packloom.config import SampleConfig, SampleLimits
from packloom.config_video import VideoConfig
from packloom.errors import BudgetError, MediaError
from packloom.task_encoders.video import decode_frames, read_clip
from packloom.task_encoders.video_rotation import mp4_rotation
from packloom.types import Media

pytest.importorskip("av", reason="PyAV is not installed: reads videos")


def video(data: bytes) -> Media:
    return Media(kind="video", name="0", data=data)


def number_of(frame: np.ndarray) -> int:
    return round((float(frame[32:].mean()) - 5) / 10)


REORDERED = {"bf": "3", "b-adapt": "0"}


@pytest.mark.parametrize("kind", ["avi", "asf", "mp4", "matroska", "flv", "mpegts"])
@pytest.mark.parametrize("options", [REORDERED, {"bf": "0"}, {**REORDERED, "x264-params": "open-gop=1"}])
def test_each_frame_is_the_one_that_was_asked_for(kind, options, clip) -> None:
    """AVI and ASF store no times of showing: FFmpeg invents some, wrong for frames that refer to later ones."""
    media = video(clip(kind, frames=20, codec="libx264", options=options))
    made = read_clip(media)
    assert made.num_frames == 20
    assert made.seconds == pytest.approx(np.arange(20) / 10)
    for index in range(20):
        assert number_of(decode_frames(media, made, [index])[0]) == index
    assert [number_of(frame) for frame in decode_frames(media, made, [3, 11, 18])] == [3, 11, 18]


def test_a_stream_that_loses_a_frame_cannot_be_counted(clip) -> None:
    media = video(clip("avi", frames=12, codec="libx264", options=REORDERED))
    made = read_clip(media)
    more = dataclasses.replace(made, seconds=np.append(made.seconds, 1.2), stamps=(*made.stamps, 99))
    with pytest.raises(MediaError, match="frames were decoded of") as caught:
        decode_frames(media, more, [2])
    assert caught.value.code == "media.frames_missing"


@pytest.mark.parametrize("options", [{"x264-params": "open-gop=1"}, {"x264-params": "intra-refresh=1"}])
def test_frames_that_need_others_before_their_key_frame_are_decoded_from_the_start(options, clip) -> None:
    media = video(clip("mp4", frames=24, noise=True, codec="libx264", options={"bf": "2", **options}))
    made = read_clip(media)
    whole = decode_frames(media, made, range(24))
    for index in range(24):
        assert np.array_equal(decode_frames(media, made, [index])[0], whole[index])


@pytest.mark.parametrize("kind", ["webm", "matroska", "mp4"])
@pytest.mark.parametrize(
    ("times", "fps", "seconds"),
    [
        ([1000 * n for n in range(20)], 1.0, 20),  # in a stream that says 30 frames a second
        ([33 * n for n in range(30)] + [1000 + 5000 * n for n in range(10)], 40 / 46, 46),
    ],
)
def test_a_rate_that_the_times_contradict_is_not_believed(kind, times, fps, seconds, clip) -> None:
    made = read_clip(video(clip(kind, frames=len(times), rate=30, times=times)))
    assert made.fps == pytest.approx(fps, rel=0.12)  # the last frame's own time is a guess where it is not told
    assert made.duration == pytest.approx(seconds, rel=0.12)
    assert made.seconds[-1] == pytest.approx(times[-1] / 1000, abs=0.01)


def test_seconds_positions_and_limits_follow_the_times(encoder_of, clip, video_row) -> None:
    row = video_row(clip("webm", frames=20, rate=30, times=[1000 * n for n in range(20)]), kind="webm")
    settings = VideoConfig(fps=0.25, min_pixels=784, max_pixels=784)
    [made] = (encoder := encoder_of("qwen2_5_vl", video=settings)).batch([encoder.encode_sample(row)])
    assert made.sample.media[0].frames.seconds == (0.0, 5.0, 10.0, 15.0)
    assert made.media_tensors["second_per_grid_ts"].tolist() == pytest.approx([10], rel=0.06)
    strict = type(encoder)(encoder.parts, config=SampleConfig(limits=SampleLimits(max_video_seconds=15)))
    with pytest.raises(BudgetError, match="the limit max_video_seconds is 15"):
        strict.encode_sample(row)


ONE = 1 << 16


@pytest.mark.parametrize(
    ("matrix", "turns"),
    [
        ((ONE, 0, 0, ONE), 0),
        ((0, ONE, -ONE, 0), 3),
        ((-ONE, 0, 0, -ONE), 2),
        ((0, -ONE, ONE, 0), 1),
        ((0, 0, 0, 0), 0),
        ((1, ONE, -ONE, -2), 3),  # a cosine of 90 degrees, computed
        ((-ONE, 0, 0, ONE), None),  # mirrored left to right, as the cameras at the front of phones do
        ((ONE, 0, 0, -ONE), None),
        ((0, ONE, ONE, 0), None),
        ((46341, 46341, -46341, 46341), None),
        ((ONE, 0, 0, ONE // 2), None),
    ],
)
def test_only_whole_turns_are_turned(matrix, turns, clip) -> None:
    data = bytearray(clip("mp4", frames=2))
    place = data.index(b"tkhd") + 4 + 40
    a, b, c, d = matrix
    struct.pack_into(">5i", data, place, a, b, 0, c, d)
    assert mp4_rotation(bytes(data)) == turns
    if turns is None:
        with pytest.raises(MediaError, match="mirrored, slanted or stretched") as caught:
            read_clip(video(bytes(data)))
        assert caught.value.code == "media.rotation"
