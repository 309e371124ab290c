"""Audio files of many kinds: what their headers tell, what is decoded, and what is refused."""

from __future__ import annotations

import io
import math
import struct
from collections.abc import Callable
from fractions import Fraction

import numpy as np
import pytest

from packloom.errors import CapabilityError, MediaError
from packloom.task_encoders import audio, video_container
from packloom.task_encoders.audio import decode_sound, read_sound, resampled
from packloom.types import Media, Sound

pytest.importorskip("av", reason="PyAV is not installed: reads audio")


def media(data: bytes, name: str = "0.wav") -> Media:
    return Media(kind="audio", name=name, data=data)


@pytest.fixture(scope="module")
def encoded() -> Callable[..., bytes]:
    """``encoded("mp3", "libmp3lame", 44100, samples)``: a stereo file with a tone of so many samples."""
    av = pytest.importorskip("av")

    def make(container: str, codec: str, rate: int, samples: int, channels: int = 2) -> bytes:
        layout = {1: "mono", 2: "stereo"}[channels]
        tone = 0.5 * np.sin(2 * np.pi * 440 * np.arange(samples) / rate)
        frame = av.AudioFrame.from_ndarray(np.stack([tone] * channels).astype(np.float32), "fltp", layout)
        frame.sample_rate, frame.pts, frame.time_base = rate, 0, Fraction(1, rate)
        buffer, queue = io.BytesIO(), av.AudioFifo()
        with av.open(buffer, "w", format=container) as file:
            stream = file.add_stream(codec, rate=rate, layout=layout)
            resampler = av.AudioResampler(format=stream.format.name, layout=layout, rate=rate)
            for part in (*resampler.resample(frame), *resampler.resample(None)):
                part.pts = None
                queue.write(part)
            size = stream.codec_context.frame_size
            while (part := queue.read(size, partial=not size)) is not None:
                file.mux(stream.encode(part))
            if (part := queue.read(0, partial=True)) is not None:
                file.mux(stream.encode(part))
            file.mux(stream.encode(None))
        return buffer.getvalue()

    return make


#: (container, codec, rate, counted without decoding)
KINDS = [
    ("wav", "pcm_s16le", 44_100, True),
    ("wav", "pcm_u8", 8_000, True),
    ("wav", "pcm_s24le", 48_000, True),
    ("wav", "pcm_f32le", 16_000, True),
    ("flac", "flac", 44_100, True),
    ("ogg", "flac", 22_050, True),
    ("ogg", "libopus", 48_000, True),
    ("mp3", "libmp3lame", 44_100, True),
    ("mp3", "libmp3lame", 16_000, True),
    ("mp4", "aac", 44_100, False),
    ("webm", "libopus", 48_000, False),
    ("wav", "adpcm_ima_wav", 16_000, False),
]


@pytest.mark.parametrize(("container", "codec", "rate", "told"), KINDS)
@pytest.mark.parametrize("samples", [2_000, 100_007])
def test_what_the_header_tells_is_what_is_decoded(container, codec, rate, told, samples, encoded, monkeypatch) -> None:
    item = media(encoded(container, codec, rate, samples))
    with monkeypatch.context() as patch:
        if told:
            patch.setattr(audio, "_decoded", None)  # nothing may be decoded
        sound = read_sound(item)
    assert sound.rate == rate
    assert samples <= sound.num_samples <= samples + 2048
    assert sound.num_samples == samples or codec in ("libmp3lame", "aac", "libopus", "adpcm_ima_wav")
    for target in (rate, 16_000):
        wave = decode_sound(item, sound, rate=target)
        assert wave.dtype == np.float32
        assert len(wave) == resampled(sound, target) == math.ceil(sound.num_samples * target / rate)
        middle = wave[len(wave) // 4 : len(wave) // 2]
        assert 0.45 < np.abs(middle).max() < 0.56


def test_samples_are_those_of_the_file() -> None:
    left, right = np.array([-32768, 0, 16384, 32767]), np.array([0, 0, -16384, 32767])
    sound = Sound(rate=16_000, num_samples=4)
    stereo = media(_wav(np.stack([left, right], axis=1).astype("<i2").tobytes(), channels=2))
    assert decode_sound(stereo, sound, rate=16_000).tolist() == [-0.5, 0.0, 0.0, 32767 / 32768]
    assert decode_sound(media(_wav(left.astype("<i2").tobytes())), sound, rate=16_000)[0] == -1.0
    floats = np.array([0.25, -1.5, 0.0, 1.0], dtype="<f4")
    assert decode_sound(media(_wav(floats.tobytes(), form=3, bits=32)), sound, rate=16_000).tolist() == floats.tolist()
    eight = media(_wav(bytes([0, 128, 192, 255]), bits=8))
    assert decode_sound(eight, sound, rate=16_000).tolist() == [-1.0, 0.0, 0.5, 127 / 128]


def _wav(samples: bytes, *, channels: int = 1, form: int = 1, bits: int = 16, rate: int = 16_000) -> bytes:
    block = channels * bits // 8
    head = struct.pack("<4sIHHIIHH", b"fmt ", 16, form, channels, rate, rate * block, block, bits)
    data = head + struct.pack("<4sI", b"data", len(samples)) + samples
    return b"RIFF" + struct.pack("<I", 4 + len(data)) + b"WAVE" + data


@pytest.mark.parametrize("rate", [8_000, 22_050, 44_100, 48_000])
def test_a_resampled_tone_is_that_tone(rate) -> None:
    tone = (16_384 * np.sin(2 * np.pi * 440 * np.arange(rate) / rate)).round().astype("<i2")
    item = media(_wav(tone.tobytes(), rate=rate))
    wave = decode_sound(item, read_sound(item), rate=16_000)
    expected = 0.5 * np.sin(2 * np.pi * 440 * np.arange(16_000) / 16_000)
    assert wave.shape == (16_000,)
    np.testing.assert_allclose(wave[200:-200], expected[200:-200], atol=1e-3)


def test_what_lies_above_the_new_rate_is_gone() -> None:
    tone = (16_384 * np.sin(2 * np.pi * 10_000 * np.arange(44_100) / 44_100)).astype("<i2")
    item = media(_wav(tone.tobytes(), rate=44_100))
    assert np.abs(decode_sound(item, read_sound(item), rate=16_000)[500:-500]).max() < 1e-3


@pytest.mark.parametrize("samples", [1, 2, 7, 100, 479, 4801])
@pytest.mark.parametrize("rate", [8_000, 11_025, 44_100, 96_000])
def test_short_files_keep_their_length(samples, rate) -> None:
    item = media(_wav(bytes(2 * samples), rate=rate))
    sound = read_sound(item)
    assert sound == Sound(rate=rate, num_samples=samples)
    assert len(decode_sound(item, sound, rate=16_000)) == -(-samples * 16_000 // rate)


def test_only_the_beginning_is_decoded_where_the_rest_is_cut(sound, monkeypatch) -> None:
    item = media(sound(20, rate=48_000))
    whole = decode_sound(item, read_sound(item), rate=16_000)
    seen = []
    real = audio._mean
    monkeypatch.setattr(audio, "_mean", lambda frame: (seen.append(frame.samples), real(frame))[1])
    start = decode_sound(item, read_sound(item), rate=16_000, most=32_000)
    np.testing.assert_allclose(start, whole[:32_000], atol=1e-6)
    assert sum(seen) < 4 * 48_000


@pytest.mark.parametrize("share", [0.5, 0.97])
@pytest.mark.parametrize(("container", "codec"), [(k, c) for k, c, _, _ in KINDS])
def test_a_cut_file_is_refused_when_it_is_measured(container, codec, share, encoded) -> None:
    data = encoded(container, codec, 48_000 if codec == "libopus" else 44_100, 200_000)
    with pytest.raises(MediaError) as caught:
        read_sound(media(data[: int(len(data) * share)]))
    assert caught.value.code in ("media.truncated", "media.unreadable")


@pytest.mark.parametrize(("container", "codec"), [("flac", "flac"), ("ogg", "libopus"), ("mp3", "libmp3lame")])
def test_a_damaged_file_is_refused(container, codec, encoded) -> None:
    data = bytearray(encoded(container, codec, 48_000, 200_000))
    middle = len(data) // 2
    data[middle : middle + 2000] = np.random.default_rng(0).integers(0, 256, 2000, dtype=np.uint8).tobytes()
    with pytest.raises(MediaError) as caught:
        decode_sound(media(bytes(data)), read_sound(media(bytes(data))), rate=16_000)
    assert caught.value.code in ("media.truncated", "media.unreadable", "media.count_differs")


@pytest.mark.parametrize(
    ("data", "code"),
    [
        (b"", "media.unreadable"),
        (b"no audio at all " * 40, "media.unreadable"),
        (_wav(b""), "media.empty"),
        (_wav(b"") + b"LIST" + struct.pack("<I", 26) + b"INFOISFT\x0e\0\0\0some software\0", "media.empty"),
        (_wav(bytes(2000), rate=999), "media.no_rate"),
        (_wav(bytes(2000), rate=1 << 20), "media.no_rate"),
        (b"RIFX" + _wav(bytes(8))[4:], "media.codec"),
        (_wav(bytes(80), bits=64), "media.codec"),
        (_wav(np.array([0, np.nan, 1], dtype="<f4").tobytes(), form=3, bits=32), "media.not_finite"),
    ],
)
def test_no_audio_in_it(data, code) -> None:
    with pytest.raises(MediaError) as caught:
        decode_sound(media(data), read_sound(media(data)), rate=16_000)
    assert caught.value.code == code
    assert "0.wav" in caught.value.reason


def test_a_wav_that_was_written_as_a_stream_states_no_size() -> None:
    data = bytearray(_wav(bytes(2000)))
    place = data.index(b"data") + 4
    for size in (b"\xff" * 4, bytes(4)):
        data[place : place + 4] = size
        sound = read_sound(media(bytes(data)))
        assert sound.num_samples == len(decode_sound(media(bytes(data)), sound, rate=16_000)) == 1000


def test_another_file_than_was_measured(sound) -> None:
    with pytest.raises(MediaError, match="16000 samples were predicted from the header, but 8000 were decoded"):
        decode_sound(media(sound(0.5)), read_sound(media(sound(1.0))), rate=16_000)
    with pytest.raises(MediaError, match="its rate changes"):
        decode_sound(media(sound(0.5, rate=8000)), read_sound(media(sound(1.0))), rate=16_000)


def test_a_video_file_without_sound(clip) -> None:
    with pytest.raises(MediaError, match="holds no audio stream"):
        read_sound(media(clip("mp4", frames=3), "0.mp4"))


def test_without_pyav_the_extra_is_named(sound, monkeypatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "av", None)
    with pytest.raises(CapabilityError, match=r"pip install 'packloom\[audio\]'"):
        read_sound(media(sound(0.1)))
    with pytest.raises(CapabilityError, match=r"packloom\[video\]"):
        video_container.pyav()
