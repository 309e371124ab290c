"""Random generators derived from digests, so that no result depends on a process, a worker or a global seed."""

from __future__ import annotations

import hashlib
import random
from collections.abc import Mapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from packloom.types import EncodedSample, RawSample


def derive_seed(*parts: int | str) -> int:
    """A 64-bit seed from the parts; equal parts give equal seeds in every process and Python version."""
    text = "\x1f".join(f"{type(part).__name__}:{part}" for part in parts)
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big")


def derive(*parts: int | str) -> random.Random:
    """A private generator seeded by ``derive_seed(*parts)``, e.g. ``derive(seed, epoch, key, "augment")``."""
    return random.Random(derive_seed(*parts))


def sample_generator(sample: RawSample | EncodedSample, stage: str) -> random.Random:
    """The private generator of one stage of one sample, from a digest of (seed, epoch, key, stage).

    For a cooker or an encoder that does something at random: ``sample_generator(raw, "crop")``, or of the samples that
    ``batch`` is given. In the loader its numbers depend on neither ranks, workers nor a resume, and differ from epoch
    to epoch; outside of it seed and epoch are 0. The generator of another library is seeded with
    ``sample_generator(raw, "crop").getrandbits(63)``.
    """
    if isinstance(sample, Mapping):
        seed, key = sample.get("__seed__", 0), str(sample.get("__key__", ""))
    else:
        seed, key = sample.seed, sample.key
    return derive(seed or derive_seed(0, 0, key), stage)
