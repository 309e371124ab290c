"""A video in; the times and the size of its frames without decoding, and later the pixels of some of them, out.

The times of the frames are those of the container's packets, which are read and not decoded: one source of truth for
their number, for what is sampled, and for what is decoded later. Needs PyAV (the extra ``video``).
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from packloom.errors import MediaError
from packloom.task_encoders.images import decode_rgb, read_header
from packloom.task_encoders.video_container import check_bytes, open_container, pyav, unreadable, video_stream
from packloom.task_encoders.video_ebml import missing_bytes
from packloom.task_encoders.video_packets import check_whole, read_packets, times_of
from packloom.task_encoders.video_rotation import mp4_rotation
from packloom.types import Media

if TYPE_CHECKING:
    from av.container import InputContainer
    from av.video.frame import VideoFrame
    from av.video.stream import VideoStream

_DECODER = {"err_detect": "explode", "threads": "1"}  # a damaged frame is an error, not a guess at one


#: What is made of one frame, [height, width, 3] uint8, as soon as it is decoded.
Each = Callable[[np.ndarray], np.ndarray]


_Stamped = Callable[[int, np.ndarray], np.ndarray]


@dataclass(frozen=True, kw_only=True, slots=True)
class Clip:
    """What is known of a video before any of it is decoded."""

    name: str
    height: int  # of a frame as it is shown, that is after rotation
    width: int
    rotation: int  # quarter turns, anticlockwise, from the stored frame to the shown one
    fps: float  # frames per second on average
    seconds: (
        np.ndarray
    )  # [n] float64: when each frame is shown, the first at 0; number / fps where the rate is constant
    stamps: tuple[int, ...] = ()  # of each frame, in the container's own unit of time; none for frames as images
    keys: tuple[int, ...] = ()  # the stamps of the key frames, ascending
    in_order: bool = False  # only the order of the decoded frames says which is which

    @property
    def num_frames(self) -> int:
        """n."""
        return len(self.seconds)

    @property
    def duration(self) -> float:
        """Seconds, the last frame's time on screen included."""
        return self.num_frames / self.fps


def read_clip(media: Media) -> Clip:
    """Frame times and size of a video, nothing decoded.

    Raises MediaError for a file that is damaged or cut, or has no video or frame rate, CapabilityError without PyAV.
    """
    if media.frames:
        return _clip_of_frames(media)
    check_bytes(media)
    if missing := missing_bytes(media.data):
        raise MediaError(
            f"{media.name}: {missing} bytes are missing at its end: the file is cut", code="media.truncated"
        )
    with open_container(media) as container:
        stream = video_stream(container, media)
        packets = read_packets(container, stream, media)
        rate = stream.average_rate or stream.guessed_rate
        if not rate or rate <= 0:
            raise _no_rate(media)
        check_whole(container, stream, packets, media)
        seconds, fps = times_of(packets, float(stream.time_base or 0), float(rate))
        rotation = _rotation(media)
        sides = (stream.height, stream.width)
    if not all(sides):
        raise MediaError(f"{media.name}: its header tells no size of the frames", code="media.unreadable")
    height, width = sides if rotation % 2 == 0 else sides[::-1]
    return Clip(
        name=media.name,
        height=height,
        width=width,
        rotation=rotation,
        fps=fps,
        seconds=seconds,
        stamps=packets.stamps,
        keys=packets.keys,
        in_order=packets.in_order,
    )


def decode_frames(media: Media, clip: Clip, indices: Sequence[int], each: Each = np.asarray) -> np.ndarray:
    """``each`` of the frames, stacked; as they are: [len(indices), height, width, 3] uint8 RGB, upright.

    Only what is needed for these frames is decoded, and whole frames are held one at a time. Raises MediaError for
    damaged frames, for frames that are missing, and for frames of another size.
    """

    def take(index: int, pixels: np.ndarray) -> np.ndarray:
        if pixels.shape != (clip.height, clip.width, 3):
            raise MediaError(
                f"{media.name}: frame {index} is {pixels.shape[1]}x{pixels.shape[0]}, the header says"
                f" {clip.width}x{clip.height}",
                code="media.size_differs",
            )
        return each(pixels)

    if media.frames:
        found = {index: take(index, np.asarray(decode_rgb(media.frames[index]))) for index in set(indices)}
    else:
        wanted = {clip.stamps[index]: index for index in indices}
        made = _decode(media, clip, sorted(wanted), lambda stamp, pixels: take(wanted[stamp], pixels))
        found = {wanted[stamp]: pixels for stamp, pixels in made.items()}
    return np.stack([found[index] for index in indices])


def _clip_of_frames(media: Media) -> Clip:
    if media.fps is None:
        raise _no_rate(media)
    headers = [read_header(frame) for frame in media.frames]
    for frame, header in zip(media.frames, headers, strict=True):
        if header != headers[0]:
            raise MediaError(
                f"{media.name}: {frame.name} is {header.width}x{header.height}, the first frame is"
                f" {headers[0].width}x{headers[0].height}: all frames of a video must be of one size",
                code="media.size_differs",
            )
    return Clip(
        name=media.name,
        height=headers[0].height,
        width=headers[0].width,
        rotation=0,
        fps=media.fps,
        seconds=np.arange(len(headers)) / media.fps,
    )


def _rotation(media: Media) -> int:
    turns = mp4_rotation(media.data)
    if turns is None:
        raise MediaError(
            f"{media.name}: its frames are mirrored, slanted or stretched when they are shown",
            code="media.rotation",
            hint="encode it again, as it is shown",
        )
    return turns


def _no_rate(media: Media) -> MediaError:
    return MediaError(
        f"{media.name}: its frames per second are not known, so neither are their times",
        code="media.no_rate",
        hint='name them beside the video: {"type": "video", "video": [...], "fps": 2.0}',
    )


def _decode(media: Media, clip: Clip, wanted: Sequence[int], each: _Stamped) -> dict[int, np.ndarray]:
    """The frames at these stamps; from the key frame before each, or, where seeking fails, from the start."""
    found: dict[int, np.ndarray] = {}
    if not clip.in_order:
        found = _from_keys(media, clip, wanted, each)
    if len(found) < len(wanted):
        with _opened(media) as (container, stream):
            frames = container.decode(stream)
            named = _counted(frames, clip, media) if clip.in_order else _named(frames, media)
            found = _take(named, wanted, clip, media, each)
    if missing := [clip.stamps.index(stamp) for stamp in wanted if stamp not in found]:
        raise MediaError(
            f"{media.name}: the frames {missing} of {clip.num_frames} could not be decoded", code="media.frames_missing"
        )
    return found


@contextmanager
def _opened(media: Media) -> Iterator[tuple[InputContainer, VideoStream]]:
    """What the decoder says of damage becomes a MediaError."""
    try:
        with open_container(media) as container:
            stream = video_stream(container, media)
            stream.codec_context.options = _DECODER
            yield container, stream
    except (pyav().FFmpegError, ValueError) as error:
        raise unreadable(media, error) from error


def _from_keys(media: Media, clip: Clip, wanted: Sequence[int], each: _Stamped) -> dict[int, np.ndarray]:
    """Not all of them where a key frame is no clean start: frames before it in time may need others before it."""
    found: dict[int, np.ndarray] = {}
    try:
        with _opened(media) as (container, stream):
            for key, group in itertools.groupby(wanted, lambda stamp: _key_before(clip.keys, stamp)):
                container.seek(key, stream=stream, backward=True)
                found |= _take(_named(container.decode(stream), media), list(group), clip, media, each)
    except MediaError as error:
        if error.code not in ("media.unreadable", "media.frame_damaged"):
            raise
        return {}
    return found


def _named(frames: Iterator[VideoFrame], media: Media) -> Iterator[tuple[int | None, VideoFrame]]:
    """Each frame with its stamp. A decoder gives them in the order in which they are shown."""
    before: int | None = None
    for frame in frames:
        stamp = frame.dts if frame.pts is None else frame.pts
        if before is not None and stamp is not None and stamp < before:
            raise MediaError(
                f"{media.name}: its frames are shown in another order than their times say",
                code="media.unreadable",
                hint="put it into another container, such as mp4",
            )
        yield stamp, frame
        before = stamp


def _counted(frames: Iterator[VideoFrame], clip: Clip, media: Media) -> Iterator[tuple[int | None, VideoFrame]]:
    """All frames, the first with the first stamp and so on; raises MediaError where they are not as many."""
    count = 0
    for frame in frames:
        if count < clip.num_frames:
            yield clip.stamps[count], frame
        count += 1
    if count != clip.num_frames:
        raise MediaError(
            f"{media.name}: {count} frames were decoded of {clip.num_frames} packets, which do not say when they are"
            " shown",
            code="media.frames_missing",
            hint="put it into another container, such as mp4",
        )


def _key_before(keys: Sequence[int], stamp: int) -> int:
    return max((key for key in keys if key <= stamp), default=keys[0])


def _take(
    frames: Iterator[tuple[int | None, VideoFrame]], wanted: Sequence[int], clip: Clip, media: Media, each: _Stamped
) -> dict[int, np.ndarray]:
    """Decode until the last wanted frame has come; frames are given out in the order in which they are shown."""
    found: dict[int, np.ndarray] = {}
    left = set(wanted)
    for stamp, frame in frames:
        if stamp in left:
            left.discard(stamp)
            found[stamp] = each(stamp, _upright(frame, stamp, clip, media))
        if not clip.in_order and (not left or (stamp is not None and stamp > wanted[-1])):
            break
    return found


def _upright(frame: VideoFrame, stamp: int, clip: Clip, media: Media) -> np.ndarray:
    if frame.is_corrupt:
        raise MediaError(f"{media.name}: frame {clip.stamps.index(stamp)} is damaged", code="media.frame_damaged")
    if round(frame.rotation / 90) % 4 != clip.rotation:
        raise MediaError(
            f"{media.name}: its frames are turned by {frame.rotation} degrees, its header says {clip.rotation * 90}",
            code="media.rotation",
            hint="encode it again, upright",
        )
    return np.ascontiguousarray(np.rot90(frame.to_ndarray(format="rgb24"), clip.rotation))
