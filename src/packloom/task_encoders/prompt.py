"""A rendered conversation and its image layouts in, expanded token ids and media places out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from packloom.errors import CookError
from packloom.task_encoders.family import ImageLayout, ImageRule, MediaBlock
from packloom.task_encoders.processors import ProcessorParts


@dataclass(frozen=True, kw_only=True, slots=True)
class Prompt:
    """A tokenised conversation in which each media token still stands once for its whole run."""

    text: str
    ids: np.ndarray  # [C] int64, compact
    offsets: np.ndarray  # [C, 2] int64, characters of each token in text
    runs: np.ndarray  # [C] int64, how often each token is repeated: 1 for text

    def expand(self, values: np.ndarray) -> np.ndarray:
        """Per-token values of the compact prompt, repeated to full length [L]."""
        return np.repeat(values, self.runs)

    @property
    def num_tokens(self) -> int:
        """L, after expansion."""
        return int(self.runs.sum())


def place_images(rendered: str, rule: ImageRule | None, layouts: Sequence[ImageLayout]) -> str:
    """Put each image's compact text in the place of its placeholder; raises CookError if the counts differ."""
    pieces = rendered.split(rule.placeholder) if rule is not None else [rendered]
    if len(pieces) - 1 != len(layouts):
        raise CookError(
            f"the chat template renders {len(pieces) - 1} image placeholders for {len(layouts)} images",
            code="template.image_count",
            hint="move the images into user turns, where the template shows them",
        )
    return pieces[0] + "".join(layout.text + piece for layout, piece in zip(layouts, pieces[1:], strict=True))


def tokenise(parts: ProcessorParts, text: str, media_id: int | None, layouts: Sequence[ImageLayout]) -> Prompt:
    """Tokenise once, and bind the media tokens to the runs they stand for."""
    encoded = parts.tokenizer(text, add_special_tokens=False, return_offsets_mapping=True, verbose=False)
    ids = np.array(encoded["input_ids"], dtype=np.int64)
    runs = np.ones(len(ids), dtype=np.int64)
    lengths = [run for layout in layouts for run in layout.runs]
    places = np.flatnonzero(ids == media_id) if media_id is not None else np.empty(0, dtype=np.int64)
    if len(places) != len(lengths):
        raise CookError(
            f"{len(places)} media tokens stand in the prompt for {len(lengths)} runs of image tokens",
            code="template.image_count",
        )
    runs[places] = lengths
    offsets = np.array(encoded["offset_mapping"], dtype=np.int64).reshape(-1, 2)
    return Prompt(text=text, ids=ids, offsets=offsets, runs=runs)


def media_blocks(prompt: Prompt, media_id: int | None, layouts: Sequence[ImageLayout]) -> list[MediaBlock]:
    """Where the images with a token grid stand in the expanded prompt, in order."""
    if media_id is None:
        return []
    starts = np.cumsum(prompt.runs) - prompt.runs
    places = starts[prompt.ids == media_id]
    first = np.cumsum([0, *(len(layout.runs) for layout in layouts)])
    return [
        MediaBlock(start=int(places[index]), grid=layout.token_grid)
        for index, layout in zip(first, layouts, strict=False)
        if layout.token_grid is not None
    ]
