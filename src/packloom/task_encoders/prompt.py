"""The filled pieces of a skeleton and the image layouts in, expanded token ids and media places out."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from packloom.errors import CookError, MaskError
from packloom.task_encoders.family import ImageLayout, MediaBlock
from packloom.task_encoders.skeleton import Skeleton, Slot


@dataclass(frozen=True, kw_only=True, slots=True)
class Prompt:
    """A tokenised conversation in which each media token still stands once for its whole run."""

    text: str
    piece_starts: Sequence[int]  # first character of each piece of the skeleton, and of its suffix
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


#: (pieces of a skeleton, the text of each) → ids and character offsets of the joined texts
Encode = Callable[[Sequence["str | Slot"], Sequence[str]], tuple[Sequence[int], Sequence[tuple[int, int]]]]


@dataclass(frozen=True)
class PlainTokenizer:
    """Encodes the joined texts as transformers does; ``tokenizer`` is the family's own."""

    tokenizer: Any

    def encode(
        self, pieces: Sequence[str | Slot], texts: Sequence[str]
    ) -> tuple[Sequence[int], Sequence[tuple[int, int]]]:
        """Ids and offsets; the tokenizer adds its first token unless the template has written it."""
        text = "".join(texts)
        bos = self.tokenizer.bos_token
        encoded = self.tokenizer(
            text,
            add_special_tokens=not (bos and text.startswith(bos)),
            return_offsets_mapping=True,
            verbose=False,
        )
        return encoded["input_ids"], encoded["offset_mapping"]


def build_prompt(
    encode: Encode,
    skeleton: Skeleton,
    texts: Sequence[str],
    layouts: Sequence[ImageLayout],
    media_id: int | None,
) -> Prompt:
    """Put the images' compact texts in their places, tokenise once, and bind the media tokens to their runs."""
    images = iter(layouts)
    pieces = [
        next(images).text if isinstance(piece, Slot) and piece.kind == "image" else text
        for piece, text in zip(skeleton.pieces, texts, strict=True)
    ]
    pieces.append(skeleton.suffix)
    made_ids, made_offsets = encode([*skeleton.pieces, skeleton.suffix], pieces)
    text = "".join(pieces)
    ids = np.array(made_ids, dtype=np.int64)
    offsets = np.array(made_offsets, dtype=np.int64).reshape(-1, 2)
    added = (offsets == 0).all(axis=1) & (np.arange(len(ids)) > 0)
    offsets[added] = len(text)  # what the tokenizer adds behind the text has no characters of its own
    return Prompt(
        text=text,
        piece_starts=skeleton.starts(pieces),
        ids=ids,
        offsets=offsets,
        runs=_runs(ids, media_id, layouts),
    )


def _runs(ids: np.ndarray, media_id: int | None, layouts: Sequence[ImageLayout]) -> np.ndarray:
    runs = np.ones(len(ids), dtype=np.int64)
    lengths = [run for layout in layouts for run in layout.runs]
    places = np.flatnonzero(ids == media_id) if media_id is not None else np.empty(0, dtype=np.int64)
    if len(places) != len(lengths):
        raise CookError(
            f"{len(places)} media tokens stand in the prompt for {len(lengths)} runs of image tokens",
            code="template.image_count",
        )
    runs[places] = lengths
    return runs


def prove_origin(prompt: Prompt, skeleton: Skeleton, control_ids: np.ndarray) -> None:
    """Check on the tokens themselves that no control token lies inside a text of the data; raises MaskError.

    ``control_ids`` [K] are the tokens that only the template may write.
    """
    ends = [*prompt.piece_starts[1:], len(prompt.text)]
    ranges = np.array(
        [
            (start, end)
            for piece, start, end in zip(skeleton.pieces, prompt.piece_starts, ends, strict=False)
            if isinstance(piece, Slot) and piece.kind != "image"
        ],
        dtype=np.int64,
    ).reshape(-1, 2)
    control = prompt.offsets[np.isin(prompt.ids, control_ids), 0]
    if not len(ranges) or not len(control):
        return
    index = np.searchsorted(ranges[:, 0], control, side="right") - 1
    inside = (index >= 0) & (control < ranges[index, 1])
    if inside.any():
        raise MaskError(
            "the tokenizer reads a control token inside the sample's own text"
            f" {prompt.text[control[inside][0] :][:20]!r}",
            code="mask.control_token_in_text",
            hint="remove it or write it differently",
        )


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
