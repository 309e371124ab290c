"""A processor that no family knows in; its placeholder, its tokens and its tensors, found by calling it, out."""

from __future__ import annotations

import inspect
import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from PIL import Image
from torch import Tensor

from packloom.errors import CapabilityError
from packloom.task_encoders.settings_images import AsLoaded

#: What a processor gives per token; the rest are media tensors.
TOKEN_KEYS = ("input_ids", "attention_mask", "token_type_ids", "mm_token_type_ids")
#: Keeps the tokens of neighbouring images apart.
_BETWEEN = "\n"


@dataclass(frozen=True, kw_only=True)
class Called(AsLoaded):
    """A whole processor, called with a placeholder per image instead of a conversation."""

    inner: Any
    placeholder: str
    media_id: int
    nested: bool  # it takes its images in one list per text
    drops: tuple[str, ...] = field(default=())  # keys of per-token tensors

    def __call__(self, *, images: Sequence[Sequence[Image.Image]], return_tensors: str = "pt") -> dict[str, Tensor]:
        """The media tensors of one sample, and ``token_runs`` [R]: the lengths of its runs of media tokens."""
        made = self.on_texts([_BETWEEN.join([self.placeholder] * len(sample)) for sample in images], images)
        runs = runs_of(made["input_ids"][0].tolist(), self.media_id)
        tensors = {name: made[name] for name in made if name not in TOKEN_KEYS}
        return {**tensors, "token_runs": torch.tensor(runs, dtype=torch.int64)}

    def on_texts(self, texts: Sequence[str], images: Sequence[Sequence[Image.Image]]) -> dict[str, Tensor]:
        """All tensors for these texts with their images; the first token is added unless a text has it."""
        return call(self.inner, texts, images, nested=self.nested)


def call(
    processor: Any, texts: Sequence[str], images: Sequence[Sequence[Image.Image]], *, nested: bool
) -> dict[str, Tensor]:
    """A processor's tensors; raises ValueError for whatever it refuses."""
    bos = processor.tokenizer.bos_token
    given = [list(sample) for sample in images] if nested else list(itertools.chain(*images))
    try:
        made = processor(
            text=list(texts),
            images=given,
            return_tensors="pt",
            add_special_tokens=not (bos and texts[0].startswith(bos)),
            **({"padding": True} if len(texts) > 1 else {}),
        )
    except (TypeError, IndexError, KeyError, AttributeError, RuntimeError, StopIteration) as error:
        raise ValueError(f"{type(error).__name__}: {error}") from error
    tensors = dict(made)
    odd = sorted(name for name, value in tensors.items() if not isinstance(value, Tensor))
    if odd:
        raise ValueError(f"it gives {', '.join(odd)}, which are no tensors")
    return tensors


def runs_of(ids: Sequence[int], media_id: int) -> list[int]:
    """The lengths of the runs of ``media_id``."""
    return [len(list(group)) for index, group in itertools.groupby(ids) if index == media_id]


def plain_image(height: int, width: int) -> Image.Image:
    """A synthetic image."""
    return Image.new("RGB", (width, height), (90, 120, 150))


def predicted_tokens(processor: Any, height: int, width: int) -> int | None:
    """What the processor's own method says of an image's tokens; None if it has no such method, or it fails.

    ``_get_num_multimodal_tokens`` is there for inference engines, and not always right: compare it.
    """
    method = inspect.getattr_static(type(processor), "_get_num_multimodal_tokens", None)
    if method is None:
        return None
    try:
        counts = processor._get_num_multimodal_tokens(image_sizes=[(height, width)])["num_image_tokens"]
    except (TypeError, ValueError, KeyError, AttributeError, IndexError, ZeroDivisionError, NotImplementedError):
        return None
    return int(counts[0]) if counts else None


def find_called(processor: Any, candidates: Sequence[str], name: str) -> Called:
    """The candidate that the processor replaces by a run of media tokens; raises CapabilityError without one."""
    reasons: list[str] = []
    for placeholder, nested in itertools.product(candidates, (True, False)):
        try:
            ids = call(processor, [placeholder], [[plain_image(300, 451)]], nested=nested)["input_ids"][0].tolist()
        except (ValueError, KeyError) as error:
            reasons.append(f"{placeholder!r}: {error}")
            continue
        runs = {index: max(runs_of(ids, index)) for index in set(ids)}
        media_id = max(runs, key=lambda index: runs[index])
        if runs[media_id] > 1:
            return Called(inner=processor, placeholder=placeholder, media_id=media_id, nested=nested)
        reasons.append(f"{placeholder!r}: it is not replaced by a run of media tokens")
    raise CapabilityError(f"{name}: the processor makes no tokens of an image ({'; '.join(dict.fromkeys(reasons))})")


def tensors_of(called: Called, sizes: Sequence[Sequence[tuple[int, int]]]) -> Mapping[str, Tensor]:
    """The processor's media tensors for a batch of samples, each with images of these sizes."""
    images = [[plain_image(*size) for size in sample] for sample in sizes]
    texts = [_BETWEEN.join([called.placeholder] * len(sample)) for sample in sizes]
    made = called.on_texts(texts, images)
    return {name: made[name] for name in made if name not in TOKEN_KEYS}
