"""A video in; the times and the size of its frames without decoding, and later the pixels of some of them, out.

The times of the frames are those of the container's packets, which are read and not decoded: one source of truth for
their number, for what is sampled, and for what is decoded later. Needs PyAV (the extra ``video``).
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from packloom.errors import MediaError
from packloom.task_encoders.images import decode_rgb, read_header
from packloom.task_encoders.video_container import check_bytes, open_container, pyav, unreadable, video_stream
from packloom.task_encoders.video_ebml import missing_bytes
from packloom.task_encoders.video_rotation import mp4_rotation
from packloom.types import Media

if TYPE_CHECKING:
    from av.container import InputContainer
    from av.video.stream import VideoStream

#: What a container's own duration may be above the end of its last packet, in seconds; more, and the file was cut.
_SLACK = 1.0
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
        stamps, keys, end = _read_packets(container, stream, media)
        rate = stream.average_rate or stream.guessed_rate
        if not rate or rate <= 0:
            raise _no_rate(media)
        _check_whole(container, stream, _counted(container, stamps), end, media)
        unit, fps = float(stream.time_base or 0), float(rate)
        rotation = mp4_rotation(media.data)
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
        seconds=_seconds(stamps, unit, fps),
        stamps=stamps,
        keys=keys,
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


def _no_rate(media: Media) -> MediaError:
    return MediaError(
        f"{media.name}: its frames per second are not known, so neither are their times",
        code="media.no_rate",
        hint='name them beside the video: {"type": "video", "video": [...], "fps": 2.0}',
    )


def _read_packets(
    container: InputContainer, stream: VideoStream, media: Media
) -> tuple[tuple[int, ...], tuple[int, ...], float]:
    """Stamps of the frames and of the key frames, ascending, and the second at which the last packet ends."""
    av = pyav()
    stamps: list[int] = []
    keys: list[int] = []
    end = 0.0
    try:
        for packet in container.demux():
            if packet.size == 0:
                continue
            stamp = packet.dts if packet.pts is None else packet.pts
            if stamp is None and packet.stream_index != stream.index and not packet.is_corrupt:
                continue  # a cover picture has no time
            if packet.is_corrupt or stamp is None:
                what = "a damaged packet" if packet.is_corrupt else "a packet without a time"
                raise MediaError(f"{media.name} has {what}: it may be cut", code="media.truncated")
            end = max(end, float((stamp + (packet.duration or 0)) * packet.time_base))
            if packet.stream_index != stream.index or packet.is_discard:
                continue
            stamps.append(stamp)
            if packet.is_keyframe:
                keys.append(stamp)
    except av.FFmpegError as error:
        raise unreadable(media, error) from error
    if not stamps or not keys:
        raise MediaError(f"{media.name} holds no frames", code="media.unreadable")
    if len(set(stamps)) < len(stamps):
        raise MediaError(f"{media.name} has two frames at one time", code="media.unreadable", hint="encode it again")
    return tuple(sorted(stamps)), tuple(sorted(keys)), end


def _counted(container: InputContainer, stamps: Sequence[int]) -> int:
    """Frames as the header counts them: an AVI counts those too that are left out, since the one before stays."""
    if container.format.name != "avi":
        return len(stamps)
    return stamps[-1] + (int(np.median(np.diff(stamps))) if len(stamps) > 1 else 1)


def _check_whole(container: InputContainer, stream: VideoStream, count: int, end: float, media: Media) -> None:
    """Compare what was found with what the container says of itself, where it does."""
    if stream.frames and count < stream.frames - _hidden(container, stream):
        raise MediaError(
            f"{media.name}: its header says {stream.frames} frames, {count} are there: the file is cut",
            code="media.truncated",
        )
    begin = (container.start_time or 0) / 1e6
    stated = (container.duration or 0) / 1e6
    if stated - (end - max(begin, 0.0)) > _SLACK:
        raise MediaError(
            f"{media.name}: its header says {stated:.1f} seconds, its packets end after {end:.1f}: the file is cut",
            code="media.truncated",
        )


def _hidden(container: InputContainer, stream: VideoStream) -> int:
    """Frames that the container counts and an edit list hides."""
    return sum(entry.is_discard for entry in stream.index_entries)


def _seconds(stamps: Sequence[int], unit: float, fps: float) -> np.ndarray:
    """When each frame is shown. A constant rate is taken at its word: many containers round times to a millisecond."""
    constant = np.arange(len(stamps)) / fps
    shown = (np.asarray(stamps, dtype=np.float64) - stamps[0]) * unit
    return constant if np.abs(shown - constant).max() <= max(0.5 / fps, unit) else shown


def _decode(media: Media, clip: Clip, wanted: Sequence[int], each: _Stamped) -> dict[int, np.ndarray]:
    """The frames at these stamps; from the key frame before each, or, where seeking fails, from the start."""
    av = pyav()
    found: dict[int, np.ndarray] = {}
    try:
        with open_container(media) as container:
            stream = video_stream(container, media)
            stream.codec_context.options = _DECODER
            for key, group in itertools.groupby(wanted, lambda stamp: _key_before(clip.keys, stamp)):
                container.seek(key, stream=stream, backward=True)
                found |= _take(container.decode(stream), list(group), clip, media, each)
        if len(found) < len(wanted):
            with open_container(media) as container:
                stream = video_stream(container, media)
                stream.codec_context.options = _DECODER
                found |= _take(container.decode(stream), list(wanted), clip, media, each)
    except (av.FFmpegError, ValueError) as error:
        raise unreadable(media, error) from error
    if missing := [clip.stamps.index(stamp) for stamp in wanted if stamp not in found]:
        raise MediaError(
            f"{media.name}: the frames {missing} of {clip.num_frames} could not be decoded", code="media.frames_missing"
        )
    return found


def _key_before(keys: Sequence[int], stamp: int) -> int:
    return max((key for key in keys if key <= stamp), default=keys[0])


def _take(frames: Iterator[Any], wanted: list[int], clip: Clip, media: Media, each: _Stamped) -> dict[int, np.ndarray]:
    """Decode until the last wanted frame has come; frames are given out in the order in which they are shown."""
    found: dict[int, np.ndarray] = {}
    left = set(wanted)
    for frame in frames:
        stamp = frame.dts if frame.pts is None else frame.pts
        if stamp in left:
            left.discard(stamp)
            if frame.is_corrupt:
                raise MediaError(
                    f"{media.name}: frame {clip.stamps.index(stamp)} is damaged", code="media.frame_damaged"
                )
            if round(frame.rotation / 90) % 4 != clip.rotation:
                raise MediaError(
                    f"{media.name}: its frames are turned by {frame.rotation} degrees, its header says"
                    f" {clip.rotation * 90}",
                    code="media.rotation",
                    hint="encode it again, upright",
                )
            turned = np.rot90(frame.to_ndarray(format="rgb24"), clip.rotation)
            found[stamp] = each(stamp, np.ascontiguousarray(turned))
        if not left or (stamp is not None and stamp > wanted[-1]):
            break
    return found
