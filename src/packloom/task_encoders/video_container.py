"""Video or audio bytes in; an open container and its stream out, or a refusal. The one place that imports PyAV."""

from __future__ import annotations

import io
from typing import TYPE_CHECKING, Any

from packloom.errors import CapabilityError, MediaError
from packloom.types import Media, MediaKind

if TYPE_CHECKING:
    from av.audio.stream import AudioStream
    from av.container import InputContainer
    from av.video.stream import VideoStream

#: What is read; playlists and the like, which name other files and addresses, are not.
_FORMATS = "mov,mp4,m4a,3gp,3g2,mj2,matroska,webm,avi,flv,asf,mpeg,mpegts,ogg,wav,mp3,flac,aac"
_OPTIONS = {"format_whitelist": _FORMATS, "protocol_whitelist": "none"}


def open_container(media: Media) -> InputContainer:
    """Raises MediaError for bytes that are no container of a known format, CapabilityError without PyAV."""
    av = pyav(media.kind)
    try:
        return av.open(io.BytesIO(media.data), mode="r", options=_OPTIONS)  # type: ignore[no-any-return]
    except (av.FFmpegError, ValueError, UnicodeError) as error:
        raise unreadable(media, error) from error


def check_bytes(media: Media) -> None:
    """Raises MediaError for a medium whose bytes are not there."""
    if media.data:
        return
    if media.aux is not None:
        raise MediaError(f"the bytes of {media.name} were not fetched", code="media.not_fetched")
    raise MediaError(f"{media.name} has no bytes", code="media.unreadable")


def pyav(kind: MediaKind = "video") -> Any:
    """The module ``av``; raises CapabilityError where it is not installed, and names the extra of this kind."""
    try:
        import av  # noqa: PLC0415 - an optional dependency
    except ImportError as error:
        raise CapabilityError(
            f"{kind} is read with PyAV, which is not installed: pip install 'packloom[{kind}]'"
        ) from error
    return av


def unreadable(media: Media, error: Exception) -> MediaError:
    """The refusal of damaged bytes, with the decoder's own words."""
    what = str(getattr(error, "strerror", None) or error)
    return MediaError(
        f"{media.name} ({len(media.data)} bytes) is no readable {media.kind}: {what}", code="media.unreadable"
    )


def video_stream(container: InputContainer, media: Media) -> VideoStream:
    """The first video stream that is no cover picture; raises MediaError without one, or without its decoder."""
    cover = pyav().stream.Disposition.attached_pic
    stream = next((found for found in container.streams.video if not found.disposition & cover), None)
    if stream is None:
        raise MediaError(f"{media.name} holds no video stream", code="media.unreadable")
    if stream.codec_context is None:
        raise MediaError(f"{media.name}: there is no decoder here for its video", code="media.codec")
    return stream


def audio_stream(container: InputContainer, media: Media) -> AudioStream:
    """The first audio stream; raises MediaError without one, or without its decoder."""
    stream = next(iter(container.streams.audio), None)
    if stream is None:
        raise MediaError(f"{media.name} holds no audio stream", code="media.unreadable")
    if stream.codec_context is None:
        raise MediaError(f"{media.name}: there is no decoder here for its audio", code="media.codec")
    return stream
