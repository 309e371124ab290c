"""An open container with a video in; when its frames are shown, from its packets, and whether it is whole, out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from packloom.errors import MediaError
from packloom.task_encoders.video_container import pyav, unreadable
from packloom.types import Media

if TYPE_CHECKING:
    from av.container import InputContainer
    from av.video.stream import VideoStream

#: What a container's own duration may be above the end of its last packet, in seconds; more, and the file was cut.
_SLACK = 1.0
#: Containers that store no time at which a frame is shown, and codecs whose frames are shown in another order than they
#: are stored. FFmpeg then invents times: for other codecs right ones, from the kinds of the frames.
_UNTIMED, _REORDERED = ("avi", "asf"), ("h264", "hevc", "vvc")
#: What the frames may last longer or shorter than their stated rate says, as a part of it.
_ROUGH = 0.02


@dataclass(frozen=True, kw_only=True, slots=True)
class Packets:
    """The packets of a video stream, each a frame; times in the container's own unit."""

    stamps: tuple[int, ...]  # ascending: when each frame is shown
    keys: tuple[int, ...]  # those of the key frames, ascending
    in_order: bool  # packets do not say when they are shown: only the order of the decoded frames does
    last: int  # how long the last frame is shown; 0 where it is not said
    end: float  # the second at which the last packet of any stream ends


def read_packets(container: InputContainer, stream: VideoStream, media: Media) -> Packets:
    """Raises MediaError for damaged packets, and for those without a time."""
    av = pyav()
    found: dict[int, int] = {}  # stamp → duration
    keys: list[int] = []
    count, end = 0, 0.0
    in_order = container.format.name in _UNTIMED and stream.codec_context.codec.canonical_name in _REORDERED
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
            count += 1
            in_order = in_order or packet.pts is None
            found[stamp] = packet.duration or 0
            if packet.is_keyframe:
                keys.append(stamp)
    except av.FFmpegError as error:
        raise unreadable(media, error) from error
    if not found or not keys:
        raise MediaError(f"{media.name} holds no frames", code="media.unreadable")
    if len(found) < count:
        raise MediaError(f"{media.name} has two frames at one time", code="media.unreadable", hint="encode it again")
    stamps = tuple(sorted(found))
    return Packets(stamps=stamps, keys=tuple(sorted(keys)), in_order=in_order, last=found[stamps[-1]], end=end)


def check_whole(container: InputContainer, stream: VideoStream, packets: Packets, media: Media) -> None:
    """Compare what was found with what the container says of itself, where it does; raises MediaError."""
    count = _counted(container, packets.stamps)
    if stream.frames and count < stream.frames - _hidden(stream):
        raise MediaError(
            f"{media.name}: its header says {stream.frames} frames, {count} are there: the file is cut",
            code="media.truncated",
        )
    begin = (container.start_time or 0) / 1e6
    stated = (container.duration or 0) / 1e6
    if stated - (packets.end - max(begin, 0.0)) > _SLACK:
        raise MediaError(
            f"{media.name}: its header says {stated:.1f} seconds, its packets end after {packets.end:.1f}: the file is"
            " cut",
            code="media.truncated",
        )


def times_of(packets: Packets, unit: float, stated_rate: float) -> tuple[np.ndarray, float]:
    """[n] float64: the second at which each frame is shown, the first at 0; and frames per second on average.

    A constant rate is taken at its word: many containers round times to a millisecond. A stated rate that the times
    contradict (some containers state the least distance of two frames) gives way to the times.
    """
    stamps = packets.stamps
    shown = (np.asarray(stamps, dtype=np.float64) - stamps[0]) * unit
    gaps = np.diff(shown)
    last = packets.last * unit or (float(np.median(gaps)) if len(gaps) else 1 / stated_rate)
    span, rate = float(shown[-1]) + last, stated_rate
    if len(gaps) and abs(len(stamps) / rate - span) > max(_ROUGH * span, float(gaps.max()), 1 / rate):
        rate = len(stamps) / span
    constant = np.arange(len(stamps)) / rate
    return (constant if np.abs(shown - constant).max() <= max(0.5 / rate, unit) else shown), rate


def _counted(container: InputContainer, stamps: Sequence[int]) -> int:
    """Frames as the header counts them: an AVI counts those too that are left out, since the one before stays."""
    if container.format.name != "avi":
        return len(stamps)
    return stamps[-1] + (int(np.median(np.diff(stamps))) if len(stamps) > 1 else 1)


def _hidden(stream: VideoStream) -> int:
    """Frames that the container counts and an edit list hides."""
    return sum(entry.is_discard for entry in stream.index_entries)
