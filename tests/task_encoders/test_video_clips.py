"""Videos as files: what is known without decoding, which frames come out, and which files are refused."""

from __future__ import annotations

import builtins
import io
from typing import Any

import numpy as np
import pytest
from PIL import Image

from packloom.errors import CapabilityError, MediaError
from packloom.task_encoders.video import _key_before, decode_frames, read_clip
from packloom.task_encoders.video_ebml import missing_bytes
from packloom.types import Media


def video(data: bytes, name: str = "0.mp4") -> Media:
    return Media(kind="video", name=name, data=data)


def greys(pixels: np.ndarray) -> list[int]:
    """The number of each frame, as the fixture ``clip`` writes it, read off the lower half."""
    height = pixels.shape[1]
    return [round((float(frame[height // 2 :].mean()) - 5) / 10) for frame in pixels]


@pytest.mark.parametrize("kind", ["mp4", "webm", "avi", "matroska"])
def test_times_and_size_are_read_without_decoding(kind, clip, monkeypatch) -> None:
    av = pytest.importorskip("av")
    media = video(clip(kind, frames=20, rate=10, height=64, width=96))
    monkeypatch.setattr(av.VideoFrame, "to_ndarray", None)
    made = read_clip(media)
    assert (made.num_frames, made.fps, made.height, made.width, made.rotation) == (20, 10.0, 64, 96, 0)
    assert made.duration == 2.0
    assert made.seconds[:4].tolist() == [0.0, 0.1, 0.2, 0.3]
    assert len(made.stamps) == 20


@pytest.mark.parametrize("kind", ["mp4", "webm", "avi", "matroska"])
@pytest.mark.parametrize("indices", [[0], [19], [3, 4, 17], [0, 0], list(range(20))])
def test_exactly_the_asked_frames_are_decoded(kind, indices, clip) -> None:
    media = video(clip(kind, frames=20, rate=10))
    pixels = decode_frames(media, read_clip(media), indices)
    assert pixels.shape == (len(indices), 64, 96, 3)
    assert greys(pixels) == indices


def test_decoding_starts_at_the_key_frame_before(clip) -> None:
    media = video(clip("mp4", frames=24, key_every=4))
    made = read_clip(media)
    assert made.stamps[12] < _key_before(made.keys, made.stamps[21]) <= made.stamps[21]
    # the start of the file is never looked at: its frames are spoilt
    data = bytearray(media.data)
    first = data.index(b"mdat") + 8
    data[first : first + 720] = b"\xff" * 720
    assert greys(decode_frames(video(bytes(data)), made, [21])) == [21]
    with pytest.raises(MediaError):
        decode_frames(video(bytes(data)), made, [1])


@pytest.mark.parametrize(("degrees", "quarters", "dark"), [(90, 1, "left"), (180, 2, "bottom"), (-90, 3, "right")])
def test_a_rotation_in_the_header_turns_size_and_pixels(degrees, quarters, dark, clip) -> None:
    media = video(clip("mp4", frames=3, rotation=degrees))
    made = read_clip(media)
    sides = (64, 96) if quarters == 2 else (96, 64)
    assert (made.rotation, made.height, made.width) == (quarters, *sides)
    [frame] = decode_frames(media, made, [2])
    edges = {"top": frame[:4], "bottom": frame[-4:], "left": frame[:, :4], "right": frame[:, -4:]}
    assert min(edges, key=lambda side: edges[side].mean()) == dark


def test_frames_at_uneven_times_keep_their_own_times(clip) -> None:
    media = video(clip("matroska", frames=5, times=[0, 100, 200, 1000, 3000]))
    made = read_clip(media)
    assert made.seconds.tolist() == pytest.approx([0, 0.1, 0.2, 1.0, 3.0])
    assert greys(decode_frames(media, made, [1, 4])) == [1, 4]


@pytest.mark.parametrize(
    ("kind", "front", "keep"),
    [
        ("mp4", False, 0.6),
        ("mp4", True, 0.6),
        ("mp4", True, 0.97),
        ("webm", False, 0.3),
        ("webm", False, 0.99),
        ("matroska", False, 0.95),
        ("avi", False, 0.6),
    ],
)
def test_a_file_that_was_cut_is_refused(kind, front, keep, clip) -> None:
    data = clip(kind, frames=30, front=front, noise=True, height=48, width=64)
    read_clip(video(data))
    with pytest.raises(MediaError) as caught:
        read_clip(video(data[: int(len(data) * keep)]))
    assert caught.value.code in ("media.truncated", "media.unreadable")


def test_a_recording_whose_length_was_not_known_is_taken(clip) -> None:
    """What a browser records: the size of the segment is left open, and no duration is told."""
    data = bytearray(clip("webm", frames=5))
    segment = data.index(b"\x18\x53\x80\x67") + 4
    assert missing_bytes(bytes(data[:-1])) == 1
    data[segment : segment + 8] = b"\x01" + b"\xff" * 7
    assert missing_bytes(bytes(data[:-1])) == 0
    assert read_clip(video(bytes(data), name="0.webm")).num_frames == 5


@pytest.mark.parametrize(
    "data", [b"", b"\x1a", b"\x1a\x45\xdf\xa3", b"\x1a\x45\xdf\xa3\xff", b"\x00" * 20, b"\xff" * 9]
)
def test_nothing_is_missing_where_no_header_says_so(data) -> None:
    assert missing_bytes(data) == 0


def test_an_avi_that_leaves_frames_out_is_whole(clip) -> None:
    """Its header counts them, and the one before stays on screen; a clip of gradio is of that kind."""
    media = video(clip("avi", frames=4, times=[0, 200, 300, 400]), name="0.avi")
    made = read_clip(media)
    assert made.num_frames == 4
    assert made.seconds.tolist() == pytest.approx([0, 0.2, 0.3, 0.4])
    assert greys(decode_frames(media, made, [1, 3])) == [1, 3]


@pytest.mark.parametrize("cover_first", [False, True])
def test_a_cover_picture_is_not_the_video(cover_first) -> None:
    av = pytest.importorskip("av")
    buffer = io.BytesIO()

    def plain(height: int, width: int) -> Any:
        return av.VideoFrame.from_ndarray(np.full((height, width, 3), 99, dtype=np.uint8), format="rgb24")

    with av.open(buffer, "w", format="mp4") as container:
        kinds = {"cover": ("mjpeg", 48, 48, "yuvj420p"), "clip": ("libx264", 64, 96, "yuv420p")}
        streams = {}
        for name in sorted(kinds, reverse=not cover_first):
            codec, height, width, pixels = kinds[name]
            stream = streams[name] = container.add_stream(codec, rate=10)
            stream.height, stream.width, stream.pix_fmt = height, width, pixels
        streams["cover"].disposition = av.stream.Disposition.attached_pic
        for name, count in (("cover", 1), ("clip", 5)):
            for _ in range(count):
                container.mux(streams[name].encode(plain(*kinds[name][1:3])))
            container.mux(streams[name].encode())
    made = read_clip(video(buffer.getvalue()))
    assert (made.num_frames, made.height, made.width) == (5, 64, 96)


@pytest.mark.parametrize("data", [b"", b"\x00" * 100, b"not a video at all", b"\x00\x00\x00\x18ftypmp42" + b"\x00" * 8])
def test_what_is_no_video_is_refused(data) -> None:
    pytest.importorskip("av")
    with pytest.raises(MediaError) as caught:
        read_clip(video(data))
    assert caught.value.code == "media.unreadable"


def test_sound_alone_is_no_video() -> None:
    av = pytest.importorskip("av")
    buffer = io.BytesIO()
    with av.open(buffer, "w", format="wav") as container:
        stream = container.add_stream("pcm_s16le", rate=8000)
        frame = av.AudioFrame.from_ndarray(np.zeros((1, 800), dtype=np.int16), format="s16", layout="mono")
        frame.sample_rate = 8000
        container.mux(stream.encode(frame))
        container.mux(stream.encode())
    with pytest.raises(MediaError, match="no video stream"):
        read_clip(video(buffer.getvalue()))


def test_damaged_frames_are_refused_or_right(clip) -> None:
    data = bytearray(clip("mp4", frames=40, noise=True, front=True))
    media = video(bytes(data))
    made = read_clip(media)
    start = data.index(b"mdat")
    refused = 0
    for seed in range(8):
        spoilt = bytearray(data)
        places = np.random.default_rng(seed).integers(start + 8, len(data), 200)
        for place in places:
            spoilt[place] ^= 0xFF
        try:
            decode_frames(video(bytes(spoilt)), made, [0, 20, 39])
        except MediaError as error:
            refused += error.code in ("media.unreadable", "media.frame_damaged", "media.frames_missing")
    assert refused == 8


def frame_list(count: int, fps: float | None, size: tuple[int, int] = (40, 30)) -> Media:
    frames = []
    for number in range(count):
        buffer = io.BytesIO()
        Image.new("RGB", size, (10 * number + 5,) * 3).save(buffer, "PNG")
        frames.append(Media(kind="image", name=f"{number}.png", data=buffer.getvalue()))
    return Media(kind="video", name="0.png", data=b"", frames=tuple(frames), fps=fps)


def test_a_video_as_images() -> None:
    media = frame_list(5, fps=2.0)
    made = read_clip(media)
    assert (made.num_frames, made.fps, made.height, made.width) == (5, 2.0, 30, 40)
    assert made.seconds.tolist() == [0, 0.5, 1.0, 1.5, 2.0]
    assert greys(decode_frames(media, made, [4, 1])) == [4, 1]


def test_images_without_a_rate_are_refused_rather_than_guessed_at() -> None:
    """failure-kinds 77: others take 24 frames per second."""
    with pytest.raises(MediaError, match="frames per second are not known") as caught:
        read_clip(frame_list(5, fps=None))
    assert caught.value.code == "media.no_rate"


def test_images_of_two_sizes_are_no_video() -> None:
    mixed = frame_list(1, 2.0).frames + frame_list(1, 2.0, size=(41, 30)).frames
    with pytest.raises(MediaError, match="41x30") as caught:
        read_clip(Media(kind="video", name="v", data=b"", frames=mixed, fps=2.0))
    assert caught.value.code == "media.size_differs"


def test_without_pyav_the_error_names_the_extra(clip, monkeypatch) -> None:
    media = video(clip("mp4", frames=2))
    real = builtins.__import__

    def without(name: str, *rest: Any) -> Any:
        if name == "av":
            raise ImportError(name)
        return real(name, *rest)

    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(CapabilityError, match=r"packloom\[video\]"):
        read_clip(media)


@pytest.mark.parametrize("kind", ["playlist", "concat"])
def test_a_list_of_other_files_is_not_followed(kind, clip, tmp_path) -> None:
    other = tmp_path / "other.mp4"
    other.write_bytes(clip("mp4", frames=3))
    lists = {
        "playlist": f"#EXTM3U\n#EXT-X-TARGETDURATION:1\n#EXTINF:1,\nfile://{other}\n#EXT-X-ENDLIST\n",
        "concat": f"ffconcat version 1.0\nfile '{other}'\n",
    }
    with pytest.raises(MediaError) as caught:
        read_clip(video(lists[kind].encode(), name="0.mp4"))
    assert caught.value.code == "media.unreadable"
