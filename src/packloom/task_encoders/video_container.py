"""Video bytes in; an open container and its video stream out, or a refusal. The one place that imports PyAV."""

from __future__ import annotations

import io
from typing import TYPE_CHECKING, Any

from packloom.errors import CapabilityError, MediaError
from packloom.types import Media

if TYPE_CHECKING:
    from av.container import InputContainer
    from av.video.stream import VideoStream

#: What is read; playlists and the like, which name other files and addresses, are not.
_FORMATS = "mov,mp4,m4a,3gp,3g2,mj2,matroska,webm,avi,flv,asf,mpeg,mpegts,ogg,wav"
_OPTIONS = {"format_whitelist": _FORMATS, "protocol_whitelist": "none"}


def open_container(media: Media) -> InputContainer:
    """Raises MediaError for bytes that are no container of a known format, CapabilityError without PyAV."""
    av = pyav()
    try:
        return av.open(io.BytesIO(media.data), mode="r", options=_OPTIONS)  # type: ignore[no-any-return]
    except (av.FFmpegError, ValueError, UnicodeError) as error:
        raise unreadable(media, error) from error


def pyav() -> Any:
    """The module ``av``; raises CapabilityError where it is not installed."""
    try:
        import av  # noqa: PLC0415 - an optional dependency
    except ImportError as error:
        raise CapabilityError(
            "videos are read with PyAV, which is not installed: pip install 'packloom[video]'"
        ) from error
    return av


def unreadable(media: Media, error: Exception) -> MediaError:
    """The refusal of damaged bytes, with the decoder's own words."""
    what = str(getattr(error, "strerror", None) or error)
    return MediaError(
        f"{media.name} ({len(media.data)} bytes) is not a readable video: {what}", code="media.unreadable"
    )


def video_stream(container: InputContainer, media: Media) -> VideoStream:
    """The first video stream; raises MediaError without one, or without its decoder."""
    stream = next(iter(container.streams.video), None)
    if stream is None:
        raise MediaError(f"{media.name} holds no video stream", code="media.unreadable")
    if stream.codec_context is None:
        raise MediaError(f"{media.name}: there is no decoder here for its video", code="media.codec")
    return stream
