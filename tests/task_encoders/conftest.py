"""Samples and encoders that the tests of this folder share."""

from __future__ import annotations

import io
from collections.abc import Callable, Mapping, Sequence
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from PIL import Image

from packloom.config import SampleConfig
from packloom.task_encoders import TaskEncoder
from packloom.task_encoders.video import decode_frames, read_clip


@pytest.fixture(scope="session")
def picture() -> Callable[[int, int], bytes]:
    """``picture(height, width)``: a PNG of seeded noise."""

    def make(height: int, width: int) -> bytes:
        noise = np.random.default_rng(height * 10_007 + width).integers(0, 256, (height, width, 3), dtype=np.uint8)
        buffer = io.BytesIO()
        Image.fromarray(noise).save(buffer, "PNG", compress_level=1)
        return buffer.getvalue()

    return make


@pytest.fixture(scope="session")
def chat_row(
    picture: Callable[[int, int], bytes], media_row: Callable[..., dict[str, Any]]
) -> Callable[[Sequence[tuple[int, int]]], dict[str, Any]]:
    """``chat_row([(height, width), ...])``: a raw row with these images between words, and two answers."""

    def make(sizes: Sequence[tuple[int, int]]) -> dict[str, Any]:
        files = {f"{index}.png": picture(*size) for index, size in enumerate(sizes)}
        return media_row("image", files, verb="Look", answer="A cat.", key=f"row-{len(sizes)}")

    return make


@pytest.fixture(scope="session")
def encoder_of(processor_dir: Callable[[str], Any]) -> Callable[..., TaskEncoder]:
    """``encoder_of(family, **settings)``: the encoder of a real processor folder."""
    made: dict[Any, TaskEncoder] = {}

    def make(family: str, **settings: Any) -> TaskEncoder:
        if family not in made:
            made[family] = TaskEncoder.from_pretrained(processor_dir(family))
        first = made[family]
        key = (family, tuple(sorted(settings.items())))
        if key not in made:  # the tokenizer and the image processor are loaded once
            made[key] = type(first)(first.parts, config=SampleConfig(**settings))
        return made[key]

    return make


@pytest.fixture(scope="session")
def clip() -> Callable[..., bytes]:
    """``clip("mp4", frames=20, rate=10, height=64, width=96)``: a video whose frame number n is grey of 10 n + 5.

    ``times`` gives each frame's own time in 1/1000 s, ``rotation`` the degrees in the header, ``key_every`` the
    distance of key frames, ``codec`` and ``options`` the encoder; ``noise`` lies over the grey, and ``front`` puts the
    header of an MP4 before its frames.
    """
    av = pytest.importorskip("av", reason="PyAV is not installed: reads videos")
    codecs = {"mp4": "libx264", "avi": "mpeg4", "asf": "libx264", "webm": "libvpx-vp9", "matroska": "libx264"}

    def make(
        kind: str = "mp4",
        *,
        frames: int = 20,
        rate: int = 10,
        height: int = 64,
        width: int = 96,
        rotation: int = 0,
        key_every: int = 8,
        times: Sequence[int] = (),
        noise: bool = False,
        front: bool = False,
        codec: str = "",
        options: Mapping[str, str] | None = None,
    ) -> bytes:
        buffer = io.BytesIO()
        with av.open(buffer, "w", format=kind) as container:
            options = {"g": str(key_every), **(options or {})}
            stream = container.add_stream(codec or codecs[kind], rate=rate, options=options)
            stream.width, stream.height, stream.pix_fmt = width, height, "yuv420p"
            if times:
                stream.codec_context.time_base = Fraction(1, 1000)
            if rotation:
                stream.set_display_rotation(rotation)
            for number in range(frames):
                grey = np.full((height, width, 3), (10 * number + 5) % 256, dtype=np.uint8)
                grey[: height // 4] = 0  # a dark bar at the top tells which side is up
                if noise:
                    grey ^= np.random.default_rng(number).integers(0, 64, grey.shape, dtype=np.uint8)
                frame = av.VideoFrame.from_ndarray(grey, format="rgb24")
                if times:
                    frame.pts, frame.time_base = times[number], Fraction(1, 1000)
                container.mux(stream.encode(frame))
            container.mux(stream.encode())
        data = buffer.getvalue()
        return _header_first(data) if front else data

    return make


def _header_first(data: bytes) -> bytes:
    """An MP4 whose header is moved before the frames, as for streaming; its offsets of chunks grow by the same."""
    boxes, place = {}, 0
    while place < len(data):
        size = int.from_bytes(data[place : place + 4], "big")
        boxes[data[place + 4 : place + 8]] = data[place : place + size]
        place += size
    header = bytearray(boxes[b"moov"])
    table = header.index(b"stco") + 8
    for number in range(int.from_bytes(header[table : table + 4], "big")):
        at = table + 4 + 4 * number
        moved = int.from_bytes(header[at : at + 4], "big") + len(header)
        header[at : at + 4] = moved.to_bytes(4, "big")
    before = data[: data.index(b"mdat") - 4]
    return before + bytes(header) + boxes[b"mdat"]


@pytest.fixture(scope="session")
def video_row(media_row: Callable[..., dict[str, Any]]) -> Callable[..., dict[str, Any]]:
    """``video_row(clip(...), ...)``: a raw row with these videos between words, and two answers."""

    def make(*videos: bytes, kind: str = "mp4") -> dict[str, Any]:
        files = {f"{index}.{kind}": data for index, data in enumerate(videos)}
        return media_row("video", files, verb="Look", answer="A cat.", key=f"row-{len(videos)}")

    return make


@pytest.fixture(scope="session")
def expected_of() -> Callable[..., dict[str, Any]]:
    """``expected_of(processor, encoder, raw, sample)``: what it makes of the conversation and the chosen frames."""

    def make(processor: Any, encoder: TaskEncoder, raw: Any, sample: Any) -> dict[str, Any]:
        videos, metadata = [], []
        for item in sample.media:
            clip = read_clip(item.media)
            videos.append(decode_frames(item.media, clip, item.frames.indices).transpose(0, 3, 1, 2))
            facts = {"total_num_frames": clip.num_frames, "fps": clip.fps, "duration": clip.duration}
            metadata.append({**facts, "frames_indices": list(item.frames.indices)})
        text = encoder.template.render(encoder.cooker(raw))
        options = {"video_metadata": metadata, "do_sample_frames": False, "return_tensors": "pt"}
        return dict(processor(text=[text], videos=videos, **options))

    return make


@pytest.fixture(scope="session")
def hearing(audio_processor_dir: Callable[[str], Any]) -> Callable[..., TaskEncoder]:
    """``hearing("qwen2_audio", **settings)``: the encoder of a family's folder."""
    made: dict[str, TaskEncoder] = {}

    def make(family: str, **settings: Any) -> TaskEncoder:
        if family not in made:
            made[family] = TaskEncoder.from_pretrained(audio_processor_dir(family))
        first = made[family]
        return type(first)(first.parts, config=SampleConfig(**settings)) if settings else first

    return make
