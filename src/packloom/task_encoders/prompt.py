"""The filled pieces of a skeleton and the image layouts in, expanded token ids and media places out."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from tokenizers import Encoding

from packloom.errors import CookError, MaskError, ProcessorError
from packloom.task_encoders.family import ImageLayout, MediaBlock
from packloom.task_encoders.skeleton import Skeleton, Slot
from packloom.task_encoders.token_places import TokenPlaces
from packloom.types import MediaKind


@dataclass(frozen=True, kw_only=True, slots=True)
class Prompt:
    """A tokenised conversation in which each media token still stands once for its whole run."""

    text: str
    piece_starts: Sequence[int]  # first character of each piece of the skeleton, and of its suffix
    ids: np.ndarray  # [C] int64, compact
    places: TokenPlaces  # the characters of each token in text; its marks are the control tokens
    runs: np.ndarray | None  # [C] int64, how often each token is repeated: 1 for text; None without media
    media_places: np.ndarray  # [K] int64, the media tokens that stand for runs
    layouts: Sequence[ImageLayout] = ()  # of the media, in the order in which they stand in the text
    order: Sequence[int] = ()  # the index of each of them among the sample's media

    def expand(self, values: np.ndarray) -> np.ndarray:
        """Per-token values of the compact prompt, repeated to full length [L]; ``values`` themselves without media."""
        return values if self.runs is None else np.repeat(values, self.runs)

    @property
    def num_tokens(self) -> int:
        """L, after expansion."""
        return len(self.ids) if self.runs is None else int(self.runs.sum())


#: (pieces of a skeleton, the text of each) → ids of the joined texts, and their encoding for its character offsets
Encode = Callable[[Sequence["str | Slot"], Sequence[str]], tuple[Sequence[int], Encoding]]


def id_table(ids: np.ndarray) -> np.ndarray:
    """[largest id + 2] bool: True at these ids [K]; the last entry, False, stands for all larger ones."""
    table = np.zeros(ids.max(initial=0) + 2, dtype=bool)
    table[ids] = True
    return table


def build_prompt(
    encode: Encode,
    skeleton: Skeleton,
    texts: Sequence[str],
    layouts: Sequence[ImageLayout],
    *,
    media_ids: Mapping[MediaKind, int],
    control: np.ndarray,
) -> Prompt:
    """Put the media's compact texts in their places, tokenise once, and bind the media tokens to their runs.

    ``media_ids`` are the tokens that are repeated, ``control`` is the id_table of those that only the template may
    write.
    """
    order = [piece.medium for piece in skeleton.pieces if isinstance(piece, Slot) and piece.kind == "image"]
    placed = [layouts[medium] for medium in order]
    media = iter(placed)
    pieces = [
        next(media).text if isinstance(piece, Slot) and piece.kind == "image" else text
        for piece, text in zip(skeleton.pieces, texts, strict=True)
    ]
    pieces.append(skeleton.suffix)
    made, encoding = encode([*skeleton.pieces, skeleton.suffix], pieces)
    if len(made) != len(encoding):
        raise ProcessorError(
            f"the tokenizer gives {len(made)} ids for a text that its backend encodes as {len(encoding)} tokens"
        )
    text = "".join(pieces)
    ids = np.fromiter(made, dtype=np.int64, count=len(made))
    marks = control.take(ids, mode="clip").nonzero()[0].tolist()
    places = _media_places(ids, media_ids, placed)
    return Prompt(
        text=text,
        piece_starts=skeleton.starts(pieces),
        ids=ids,
        places=TokenPlaces(encoding, len(text), marks),
        runs=_runs(ids, places, placed),
        media_places=places,
        layouts=placed,
        order=order,
    )


def _media_places(ids: np.ndarray, media_ids: Mapping[MediaKind, int], layouts: Sequence[ImageLayout]) -> np.ndarray:
    """[K] int64: the media tokens, each of the kind that the layouts have there."""
    is_media = np.zeros(len(ids), dtype=bool)
    for media_id in set(media_ids.values()):
        is_media |= ids == media_id
    places = np.flatnonzero(is_media)
    wanted = [media_ids.get(layout.kind, -1) for layout in layouts for _ in layout.runs]
    if len(places) != len(wanted):
        raise CookError(
            f"{len(places)} media tokens stand in the prompt for {len(wanted)} runs of media tokens",
            code="template.image_count",
        )
    if not np.array_equal(ids[places], wanted):
        raise CookError("a media token of another kind stands in a medium's place", code="template.image_count")
    return places


def _runs(ids: np.ndarray, places: np.ndarray, layouts: Sequence[ImageLayout]) -> np.ndarray | None:
    if not len(places):
        return None
    runs = np.ones(len(ids), dtype=np.int64)
    runs[places] = [run for layout in layouts for run in layout.runs]
    return runs


def prove_origin(prompt: Prompt, skeleton: Skeleton) -> None:
    """Check on the tokens themselves that no control token reaches into a text of the data; raises MaskError.

    A token may take white space of a text with it.
    """
    pieces, starts = (*skeleton.pieces, skeleton.suffix), prompt.piece_starts
    for first, end in prompt.places.mark_characters:
        if first < 0:
            continue
        number = last = bisect_right(starts, first) - 1
        if number + 1 < len(starts) and end > starts[number + 1]:
            bare = len(prompt.text[first:end].rstrip())
            last = bisect_right(starts, first + max(bare, 1) - 1) - 1
        elif isinstance(pieces[number], str):
            continue
        if any(isinstance(piece, Slot) and piece.kind != "image" for piece in pieces[number : last + 1]):
            raise MaskError(
                f"the tokenizer reads a control token inside the sample's own text {prompt.text[first : first + 20]!r}",
                code="mask.control_token_in_text",
                hint="remove it or write it differently",
            )


def media_blocks(prompt: Prompt) -> list[MediaBlock]:
    """Where the media with a token grid stand in the expanded prompt, in order."""
    if prompt.runs is None:
        return []
    starts = (np.cumsum(prompt.runs) - prompt.runs)[prompt.media_places]
    blocks, first = [], 0
    for layout in prompt.layouts:
        if layout.token_grid is not None:
            blocks += [
                MediaBlock(
                    start=int(start),
                    grid=layout.token_grid,
                    time_step=layout.time_step,
                    time_scale=layout.time_scale,
                    advance=layout.advance,
                )
                for start in starts[first : first + (len(layout.runs) if layout.per_run else 1)]
            ]
        first += len(layout.runs)
    return blocks


#: What ``mm_token_type_ids`` of transformers' processors hold; 0 is text.
_TYPES: Mapping[MediaKind, int] = {"image": 1, "video": 2, "audio": 3}


def media_types(prompt: Prompt) -> np.ndarray:
    """[C] int64: 0 for text, else the kind of the medium whose token it is."""
    types = np.zeros(len(prompt.ids), dtype=np.int64)
    types[prompt.media_places] = [_TYPES[layout.kind] for layout in prompt.layouts for _ in layout.runs]
    return types
