"""An encoder goes in; the smallest row with a medium that its processor makes comes out, as a batch's dummy medium."""

from __future__ import annotations

import io
import wave
from typing import Protocol

import numpy as np
import torch
from PIL import Image

from packloom.collates.dummy_media import make_dummy
from packloom.errors import BatchError, CapabilityError, ConfigError, SampleError
from packloom.types import ChatSample, EncodedSample, Media, MediaPart, Message, Row, TextPart

_SIDE = 32  # pixels; every processor scales such an image up to the least that it makes
_RATE, _SAMPLES = 16_000, 1600  # a tenth of a second of silence


class _Encoder(Protocol):
    @property
    def media_ids(self) -> np.ndarray: ...

    def encode_sample(self, raw: ChatSample) -> EncodedSample: ...

    def batch(self, samples: list[EncodedSample]) -> list[Row]: ...


def dummy_row(encoder: _Encoder, family: str, *, images: bool, audio: bool) -> Row:
    """A white image, or silence, without labels and without text, under the key "".

    Raises CapabilityError for an encoder without media, or with two towers, of which one dummy would run only one; and
    ConfigError if its settings refuse even this one.
    """
    if images == audio:
        both = (
            "both images and audio, and one dummy medium runs only one of its towers: if the data have no audio, say so"
            " with limits=SampleLimits(max_audios=0)"
        )
        raise CapabilityError(
            f"dummy_media needs an encoder with either images or audio; this one, of {family}, has"
            f" {both if images else 'text only'}"
        )
    medium = _white() if images else _silence()
    question = Message(role="user", parts=(MediaPart(kind=medium.kind, index=0), TextPart(text="What is this?")))
    answer = Message(role="assistant", parts=(TextPart(text="Nothing."),))
    try:
        sample = encoder.encode_sample(ChatSample(key="dummy", messages=(question, answer), media=(medium,)))
        [row] = encoder.batch([sample])
        return make_dummy(row, torch.from_numpy(encoder.media_ids))
    except (SampleError, BatchError) as error:
        raise ConfigError(f"no dummy medium can be made under the encoder's settings: {error}") from error


def _white() -> Media:
    buffer = io.BytesIO()
    Image.new("RGB", (_SIDE, _SIDE), "white").save(buffer, "PNG")
    return Media(kind="image", name="dummy.png", data=buffer.getvalue())


def _silence() -> Media:
    buffer = io.BytesIO()
    with wave.open(buffer, "wb") as file:
        file.setnchannels(1)
        file.setsampwidth(2)
        file.setframerate(_RATE)
        file.writeframes(bytes(2 * _SAMPLES))
    return Media(kind="audio", name="dummy.wav", data=buffer.getvalue())
