"""An encoder goes in; the facts that decide what it makes of a sample come out, for a state to be compared with."""

from __future__ import annotations

import hashlib
import inspect
import json
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from packloom.loader.stages import Encoder
from packloom.task_encoders import TaskEncoder
from packloom.task_encoders.image_backends import backend_of

#: One fact: a value of a setting, or a digest of what is too long to show.
Fact = str | int | float | bool | None


def encoder_fingerprint(encoder: Encoder) -> dict[str, Fact]:
    """The facts, by name: values of SampleConfig, and digests of template, tokenizer, images and special tokens.

    Of an encoder that is no TaskEncoder only its class and ``max_length`` are known. packloom's own version is no fact:
    what matters of it shows in tokens, and those are checked against the state where they must fit a pack.
    """
    if not isinstance(encoder, TaskEncoder):
        return {"class": qualified_name(type(encoder)), "max_length": encoder.max_length}
    parts = encoder.parts
    images = None if parts.image_processor is None else _digest(parts.image_processor.to_dict())
    settings = asdict(encoder.config)
    limits = {f"limits.{name}": value for name, value in settings.pop("limits").items()}
    video = {f"video.{name}": value for name, value in settings.pop("video").items()}
    audio = {f"audio.{name}": value for name, value in settings.pop("audio").items()}
    return {
        "family": encoder.family.name,
        "class": qualified_name(type(encoder)),
        "cooker": qualified_name(encoder.cooker),
        "chat_template": _digest(parts.chat_template),
        "tokenizer": _digest(_tokenizer_text(parts.tokenizer)),
        "special_tokens": _digest(parts.tokenizer.special_tokens_map),
        "image_processor": images,
        "pixel_backend": None if parts.image_processor is None else _pixel_backend(encoder),
        "feature_extractor": None if parts.audio_settings is None else _digest(parts.audio_settings),
        "processor": _digest({name: value for name, value in parts.settings.items() if name != "chat_template"}),
        **settings,
        **limits,
        **video,
        **audio,
    }


def _pixel_backend(encoder: TaskEncoder) -> str:
    """Whose pixels the encoder makes; transformers' backends write the same settings."""
    asked = encoder.config.pixels
    return backend_of(encoder.parts.image_processor) if asked == "auto" else asked


def _tokenizer_text(tokenizer: Any) -> str:
    """The tokenizer's JSON without its head, where each call leaves the truncation and padding that it asked for."""
    text = str(tokenizer.backend_tokenizer.to_str())
    _, mark, rest = text.partition('"added_tokens"')
    return mark + rest or text


def _digest(value: str | Mapping[str, Any]) -> str:
    text = value if isinstance(value, str) else json.dumps(value, sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def qualified_name(thing: Any) -> str:
    """The importable name of a class or function, else that of its class (a partial, an object that is called)."""
    named = thing if isinstance(thing, type) or inspect.isroutine(thing) else type(thing)
    return f"{named.__module__}.{named.__qualname__}"
