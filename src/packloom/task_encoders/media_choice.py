"""A processor, its image rule and the settings in; how images are loaded out: as bytes where that is proved."""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from packloom.config import SampleConfig
from packloom.errors import CapabilityError, ConfigError, MediaError
from packloom.pixels import decode_pixels
from packloom.rng import derive_seed
from packloom.task_encoders.family import ImageRule
from packloom.task_encoders.fast_media import FastMedia, make_fast_media
from packloom.task_encoders.image_backends import Backend, backend_of, on_backend, run_processor
from packloom.task_encoders.processors import ProcessorParts

logger = logging.getLogger(__name__)

#: (height, width) of the images of each probe: one that most processors enlarge; two of which they make unequal much.
_PROBES = (((37, 53),), ((150, 220), (190, 31)))


def choose_media(
    parts: ProcessorParts, rule: ImageRule | None, config: SampleConfig, joins: Mapping[str, str]
) -> tuple[ProcessorParts, FastMedia | None]:
    """The parts on the backend that the settings ask for, and the fast path where it equals that backend's pixels.

    The bytes are compared with the processor's floats on probes. Where they differ the exact path is taken, with a
    warning that says why; where bytes cannot stand for the pixels, quietly. Raises CapabilityError for a backend that
    can be had neither way, ConfigError for a backend where there are no images.
    """
    images = parts.image_processor
    if images is None or rule is None:
        if config.pixels != "auto":
            raise ConfigError(f"pixels={config.pixels!r} was given, but {parts.name} has no image processor")
        return parts, None
    backend: Backend = backend_of(images) if config.pixels == "auto" else config.pixels
    exact = on_backend(images, backend)
    if exact is not None:
        parts = dataclasses.replace(parts, image_processor=exact)
    if config.media == "exact_hf":
        reason = "media is 'exact_hf'"
    else:
        fast, reason = _try_fast(parts.image_processor, exact, rule, backend, joins)
        if fast is not None:
            return parts, fast
    if exact is None:
        raise CapabilityError(
            f"{parts.name}: pixels={backend!r} needs transformers' own image processor on {backend}, which cannot be"
            f" loaded here ({reason}): install {backend}, or leave pixels at 'auto'"
        )
    return parts, None


def _try_fast(
    images: Any, exact: Any | None, rule: ImageRule, backend: Backend, joins: Mapping[str, str]
) -> tuple[FastMedia | None, str]:
    """The fast path, or why there is none. Without ``exact`` there is nothing here to compare it with."""
    if joins.get("pixel_values", "concat").startswith("pad"):
        return None, "rows are joined with zeros between them, which bytes have no value for"
    try:
        fast = make_fast_media(images, rule, backend)
    except CapabilityError as error:
        logger.info("images come as the processor's own floats: %s", error)
        return None, str(error)
    difference = "" if exact is None else find_difference(fast, exact, rule)
    if difference:
        logger.warning("media='exact_hf' is used, since the fast path differs from the processor %s", difference)
        return None, difference
    return fast, ""


def find_difference(fast: FastMedia, exact: Any, rule: ImageRule) -> str:
    """What differs between the fast tensors and those of the processor ``exact``, on probes; "" if nothing does."""
    random = np.random.default_rng(derive_seed("media", "probe"))
    for sizes in _PROBES:
        images = [Image.fromarray(random.integers(0, 256, (*size, 3), dtype=np.uint8)) for size in sizes]
        where = "on images of " + ", ".join(f"{width}x{height}" for height, width in sizes)
        try:
            expected = run_processor(exact, images, rule.call_options)
            made = fast.process(images, [rule.measure(*size, len(sizes)) for size in sizes])
        except MediaError as error:
            return f"{where}: {error}"
        made["pixel_values"] = decode_pixels(made["pixel_values"], fast.table, frames=fast.frames)
        for name in rule.model_keys:
            if difference := tensor_difference(made[name], expected[name]):
                return f"{where}, in {name}: {difference}"
    return ""


def tensor_difference(made: Tensor, expected: Tensor) -> str:
    """What differs, dtype and shape included; "" if nothing does."""
    if made.shape != expected.shape or made.dtype != expected.dtype:
        return f"{made.dtype} {list(made.shape)} against {expected.dtype} {list(expected.shape)}"
    return "" if torch.equal(made, expected) else f"values differ by up to {(made - expected).abs().max():.3g}"
