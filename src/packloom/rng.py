"""Random generators derived from digests, so that no result depends on a process, a worker or a global seed."""

from __future__ import annotations

import hashlib
import random


def derive_seed(*parts: int | str) -> int:
    """A 64-bit seed from the parts; equal parts give equal seeds in every process and Python version."""
    text = "\x1f".join(f"{type(part).__name__}:{part}" for part in parts)
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big")


def derive(*parts: int | str) -> random.Random:
    """A private generator seeded by ``derive_seed(*parts)``, e.g. ``derive(seed, epoch, key, "augment")``."""
    return random.Random(derive_seed(*parts))
