"""Work goes in; packloom's loader over it, with each backend's pixels and with the exact path, comes out."""

from __future__ import annotations

from typing import Any

from contenders.workload import MAX_PIXELS, MIN_PIXELS, PACK_LENGTH, Work
from packloom import TaskEncoder, build_loader


def packloom_torch(work: Work) -> Any:
    """Bit for bit the pixels of transformers on torchvision, without it."""
    return _packloom(work, pixels="torchvision")


def packloom_pillow(work: Work) -> Any:
    """Bit for bit the pixels of transformers on Pillow."""
    return _packloom(work, pixels="pil")


def _packloom(work: Work, **settings: Any) -> Any:
    encoder = TaskEncoder.from_pretrained(
        work.processor, max_length=PACK_LENGTH, min_pixels=MIN_PIXELS, max_pixels=MAX_PIXELS, **settings
    )
    return build_loader(work.shards, encoder, pack_length=PACK_LENGTH, num_workers=work.num_workers)
