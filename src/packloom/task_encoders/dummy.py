"""An encoder goes in; the smallest row with an image that its processor makes comes out, as a batch's dummy medium."""

from __future__ import annotations

import io
from typing import Protocol

import numpy as np
import torch
from PIL import Image

from packloom.collates.dummy_media import make_dummy
from packloom.errors import BatchError, CapabilityError, ConfigError, SampleError
from packloom.types import ChatSample, EncodedSample, Media, MediaPart, Message, Row, TextPart

_SIDE = 32  # pixels; every processor scales such an image up to the least that it makes


class _Encoder(Protocol):
    @property
    def media_ids(self) -> np.ndarray: ...

    def encode_sample(self, raw: ChatSample) -> EncodedSample: ...

    def batch(self, samples: list[EncodedSample]) -> list[Row]: ...


def dummy_row(encoder: _Encoder, *, family: str, has_images: bool) -> Row:
    """A white image without labels and without text, under the key "".

    Raises CapabilityError for an encoder without images, and ConfigError if its settings refuse even this one.
    """
    if not has_images:
        raise CapabilityError(f"dummy_media needs an encoder with images, and this one, of {family}, has text only")
    buffer = io.BytesIO()
    Image.new("RGB", (_SIDE, _SIDE), "white").save(buffer, "PNG")
    question = Message(role="user", parts=(MediaPart(kind="image", index=0), TextPart(text="What is this?")))
    answer = Message(role="assistant", parts=(TextPart(text="Nothing."),))
    image = Media(kind="image", name="dummy.png", data=buffer.getvalue())
    try:
        sample = encoder.encode_sample(ChatSample(key="dummy", messages=(question, answer), media=(image,)))
        [row] = encoder.batch([sample])
        return make_dummy(row, torch.from_numpy(encoder.media_ids))
    except (SampleError, BatchError) as error:
        raise ConfigError(f"no dummy medium can be made under the encoder's settings: {error}") from error
