"""An audio file in; its rate and length, without decoding where its container tells, and later its samples, out.

Reads and resamples with PyAV (the extra ``audio``).
"""

from __future__ import annotations

from collections.abc import Iterator
from fractions import Fraction
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from packloom.errors import MediaError
from packloom.task_encoders.audio_ends import check_end
from packloom.task_encoders.video_container import audio_stream, check_bytes, open_container, pyav, unreadable
from packloom.types import Media, Sound

if TYPE_CHECKING:
    from av.audio.frame import AudioFrame
    from av.audio.stream import AudioStream
    from av.container import InputContainer

#: (container, codec) whose packets tell exactly how many samples they become; all others are decoded to be counted.
_EXACT = {("flac", "flac"), ("ogg", "flac"), ("ogg", "opus"), ("mp3", "mp3")}
#: Side data: samples to drop at the start of a packet, and at its end, as two 32-bit numbers.
_SKIP: Final = "skip_samples"
#: Samples per second that somebody may have recorded; a header that tells others is damaged.
_RATES = range(1_000, 768_001)
#: Seconds that a header may promise above what is there, for containers whose times are rough.
_SLACK = 1.0
_DECODER = {"err_detect": "explode", "threads": "1"}  # a damaged frame is an error, not a guess at one


def read_sound(media: Media) -> Sound:
    """Rate and number of samples.

    Raises MediaError for a file that is damaged or cut, is empty or holds no audio, CapabilityError without PyAV.
    """
    check_bytes(media)
    check_end(media)
    with open_container(media) as container:
        stream = audio_stream(container, media)
        rate = int(stream.rate)
        if rate <= 0:
            raise MediaError(f"{media.name}: its header tells no sampling rate", code="media.no_rate")
        told = _count_packets(container, stream, media) if _is_exact(container, stream) else None
        stated = _stated(container, stream)
    sound = _count_decoded(media, stated) if told is None else Sound(rate=rate, num_samples=told)
    if sound.num_samples <= 0:
        raise MediaError(f"{media.name} holds no samples", code="media.empty")
    if sound.rate not in _RATES:
        raise MediaError(
            f"{media.name}: its header tells {sound.rate} samples per second; {_RATES[0]} to {_RATES[-1]} are believed",
            code="media.no_rate",
        )
    return sound


def decode_sound(media: Media, sound: Sound, *, rate: int, most: int | None = None) -> np.ndarray:
    """[n] float32 in -1..1: all channels' mean at this rate, n as ``resampled`` says, and at most ``most``.

    Raises MediaError for damaged audio, and where the file holds another number of samples than ``sound`` says.
    """
    wanted, needed = resampled(sound, rate), sound.num_samples
    is_whole = most is None or most >= wanted
    if not is_whole:
        wanted = most or 0
        needed = min(needed, -(-(wanted + rate) * sound.rate // rate))  # a second more than is kept
    pieces, found = [], 0
    for piece in _frames(media, sound.rate):
        pieces.append(piece)
        found += len(piece)
        if not is_whole and found >= needed:
            break
    if found < needed or (is_whole and found > needed):
        raise MediaError(
            f"{media.name}: {sound.num_samples} samples were predicted from the header, but {found} were decoded",
            code="media.count_differs",
            hint="encode it again, as flac or wav",
        )
    wave = np.concatenate(pieces)
    if not np.isfinite(wave).all():
        raise MediaError(f"{media.name} holds samples that are no finite numbers", code="media.not_finite")
    return wave[:wanted] if rate == sound.rate else _resample(wave, sound.rate, rate, wanted, media)


def resampled(sound: Sound, rate: int) -> int:
    """How many samples there are at another rate: the least number that covers the whole duration."""
    return -(-sound.num_samples * rate // sound.rate)


def _stated(container: InputContainer, stream: AudioStream) -> float | None:
    """The seconds that the header promises; those of the whole file where there is nothing else in it."""
    if stream.duration is not None:
        return float(stream.duration * (stream.time_base or 0))
    return container.duration / 1e6 if container.duration and len(container.streams) == 1 else None


def _is_exact(container: InputContainer, stream: AudioStream) -> bool:
    form, codec = container.format.name, stream.codec_context.codec.canonical_name
    return (form, codec) in _EXACT or (form == "wav" and codec.startswith("pcm_"))


def _count_packets(container: InputContainer, stream: AudioStream, media: Media) -> int:
    """Samples that the packets become; compared with what the header says, where it does."""
    ticks = before = behind = 0
    try:
        for packet in container.demux(stream):
            if packet.size == 0:
                continue
            if packet.is_corrupt and container.format.name != "wav":  # its end was checked, and may be stated nowhere
                raise MediaError(f"{media.name} has a damaged packet: it may be cut", code="media.truncated")
            ticks += packet.duration or 0
            if packet.has_sidedata(_SKIP):
                skipped = bytes(packet.get_sidedata(_SKIP))
                before += int.from_bytes(skipped[:4], "little")
                behind += int.from_bytes(skipped[4:8], "little")
    except pyav("audio").FFmpegError as error:
        raise unreadable(media, error) from error
    unit = (stream.time_base or 0) * stream.rate
    is_mp3 = container.format.name == "mp3"
    # the durations in an ogg leave out what is dropped at the end, its stated one takes in what is dropped at the start
    count = Fraction(ticks * unit) - before - (behind if is_mp3 else 0)
    stated = Fraction((stream.duration or 0) * unit) - (0 if is_mp3 else before)
    known = not is_mp3 or before > 0  # without a gapless header the duration of an mp3 is a guess by its bit rate
    if known and stream.duration is not None and abs(stated - count) >= 1:
        raise MediaError(
            f"{media.name}: its header says {int(stated)} samples, {int(count)} are there: the file is cut or damaged",
            code="media.truncated",
        )
    return int(count)


def _count_decoded(media: Media, stated: float | None) -> Sound:
    """The rate is that of the samples: for some codecs the header tells half of it."""
    count, rate = 0, 1
    for frame in _decoded(media):
        count, rate = count + frame.samples, frame.sample_rate
    if stated is not None and stated - count / rate > _SLACK:
        raise MediaError(
            f"{media.name}: its header says {stated:.1f} seconds, {count / rate:.1f} are there: the file is cut",
            code="media.truncated",
        )
    return Sound(rate=rate, num_samples=count)


def _frames(media: Media, rate: int) -> Iterator[np.ndarray]:
    """Each frame's channels' mean, [n] float32."""
    for frame in _decoded(media):
        if frame.sample_rate != rate:
            raise MediaError(
                f"{media.name}: its rate changes from {rate} to {frame.sample_rate} Hz", code="media.rate_changes"
            )
        try:
            mean = _mean(frame)
        except ValueError as error:  # of PyAV, for 64-bit integers
            raise MediaError(
                f"{media.name}: samples of the kind {frame.format.name} are not read", code="media.codec"
            ) from error
        yield mean


def _decoded(media: Media) -> Iterator[AudioFrame]:
    av = pyav("audio")
    try:
        with open_container(media) as container:
            stream = audio_stream(container, media)
            stream.codec_context.options = _DECODER
            for frame in container.decode(stream):
                if frame.is_corrupt:
                    raise MediaError(f"{media.name}: a frame of it is damaged", code="media.frame_damaged")
                yield frame
    except (av.FFmpegError, ValueError) as error:
        raise unreadable(media, error) from error


def _mean(frame: AudioFrame) -> np.ndarray:
    """[n] float32. Integers become numbers in -1..1 by their full scale."""
    samples: Any = frame.to_ndarray()
    if not frame.format.is_planar:
        samples = samples.reshape(frame.samples, -1).T
    if samples.dtype == np.uint8:
        samples = (samples.astype(np.float32) - 128) / 128
    elif samples.dtype.kind == "i":
        samples = samples / np.float64(-float(np.iinfo(samples.dtype).min))
    mean: np.ndarray = samples.mean(axis=0, dtype=np.float64) if len(samples) > 1 else samples[0]
    return mean.astype(np.float32)


def _resample(wave: np.ndarray, rate: int, target: int, wanted: int, media: Media) -> np.ndarray:
    """[wanted] float32. Silence behind the end lets the resampler give out all of it."""
    av = pyav("audio")
    silence = np.zeros(64 + 64 * max(1, -(-rate // target)), dtype=np.float32)
    frame = av.AudioFrame.from_ndarray(np.concatenate((wave, silence))[None], format="flt", layout="mono")
    frame.sample_rate = rate
    resampler = av.AudioResampler(format="flt", layout="mono", rate=target)
    made = [part.to_ndarray()[0] for part in (*resampler.resample(frame), *resampler.resample(None))]
    whole: np.ndarray = np.concatenate(made)
    if len(whole) < wanted:
        raise MediaError(
            f"{media.name}: {len(whole)} samples came out at {target} Hz, {wanted} were predicted",
            code="media.count_differs",
        )
    return whole[:wanted]
