"""A processor that no family knows in; the rule of its images, measured and proved on a grid of sizes, out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from packloom.collates.media_joins import JOINS, join
from packloom.errors import BatchError, CapabilityError, MediaError
from packloom.task_encoders.family import ImageLayout
from packloom.task_encoders.measured_processor import (
    Called,
    find_called,
    plain_image,
    predicted_tokens,
    runs_of,
    tensors_of,
)

#: (height, width): a photo, squares, beside tile borders, thin and tiny ones.
GRID = ((300, 451), (64, 64), (336, 336), (337, 449), (449, 897), (1000, 90), (40, 700), (17, 23), (5, 5))
#: Fewer sizes than these that the processor takes prove nothing.
_FEWEST = 6


@dataclass(frozen=True, kw_only=True)
class MeasuredImageRule:
    """One text for every image; its runs of media tokens are always the same, or one of a length that it tells."""

    called: Called
    token: str
    text: str
    runs: tuple[int, ...] | None  # None: ask the processor
    surplus: int = 0  # what the processor counts beside the run
    alone: bool = False  # several images of one sample become other tokens than each by itself
    model_keys: tuple[str, ...] = ()
    helper_keys: tuple[str, ...] = ("token_runs",)
    call_options: Mapping[str, Any] = field(default_factory=dict)

    @property
    def placeholder(self) -> str:
        """What the processor replaces."""
        return self.called.placeholder

    def measure(self, height: int, width: int, num_images: int = 1) -> ImageLayout:
        """The layout of an image of this size; raises MediaError where the processor cannot tell."""
        if self.alone and num_images > 1:
            raise MediaError(
                "this processor treats several images of a sample otherwise than single ones, which packloom does not"
                " know how to predict",
                code="media.unsupported",
                hint="declare a family with an image_rule",
            )
        runs = self.runs or (self._predicted(height, width),)
        return ImageLayout(text=self.text, runs=runs, num_patches=sum(runs))

    def _predicted(self, height: int, width: int) -> int:
        tokens = predicted_tokens(self.called.inner, height, width)
        if tokens is None or tokens <= self.surplus:
            raise MediaError(f"the processor cannot tell the tokens of a {width}x{height} image", code="media.refused")
        return tokens - self.surplus

    def produced(self, tensors: dict[str, Tensor], index: int) -> object:
        """The runs that the processor wrote for the image at ``index``."""
        each = len(self.runs or (0,))
        return tuple(tensors["token_runs"][index * each : (index + 1) * each].tolist())

    def expected(self, layout: ImageLayout) -> object:
        """The predicted runs."""
        return layout.runs


def measure_images(processor: Any, candidates: Sequence[str], name: str) -> MeasuredImageRule:
    """Find the rule that explains what the processor makes of every size of GRID; raises CapabilityError without one.

    ``candidates`` are the texts that may be the placeholder.
    """
    called = find_called(processor, candidates, name)
    made = {size: ids for size in GRID if (ids := _ids(called, size))}
    if len(made) < _FEWEST:
        raise CapabilityError(f"{name}: the processor refuses {len(GRID) - len(made)} of {len(GRID)} plain images")
    token = processor.tokenizer.convert_ids_to_tokens(called.media_id)
    texts = {_text(processor.tokenizer, ids, called.media_id) for ids in made.values()}
    runs = {size: tuple(runs_of(ids, called.media_id)) for size, ids in made.items()}
    if len(texts) > 1:
        raise CapabilityError(
            f"{name}: what stands between an image's tokens depends on its size, for rows or tiles: only runs of tokens"
            " between fixed marks are measured"
        )
    fixed = len(set(runs.values())) == 1
    surplus = 0 if fixed else _surplus(processor, runs, name)
    return MeasuredImageRule(
        called=called,
        token=token,
        text=texts.pop(),
        runs=runs[GRID[0]] if fixed else None,
        surplus=surplus,
        alone=_differ_together(called, runs),
        model_keys=tuple(sorted(tensors_of(called, [[GRID[0]]]))),
    )


def _ids(called: Called, size: tuple[int, int]) -> list[int]:
    """What the placeholder becomes for one image; empty where the processor refuses it."""
    try:
        ids = called.on_texts([called.placeholder], [[plain_image(*size)]])["input_ids"][0].tolist()
    except ValueError:
        return []
    tokenizer = called.inner.tokenizer
    bare = tokenizer("x", add_special_tokens=False)["input_ids"]
    full = tokenizer("x")["input_ids"]
    before = next((n for n in range(len(full)) if full[n : n + len(bare)] == bare), 0)
    behind = len(full) - len(bare) - before
    return list(ids[before : len(ids) - behind])


def _text(tokenizer: Any, ids: Sequence[int], media_id: int) -> str:
    """The text of these tokens, every run of media tokens written as one of them."""
    pieces: list[list[int]] = [[]]
    for previous, index in zip([None, *ids], ids, strict=False):
        if index != media_id:
            pieces[-1].append(index)
        elif previous != media_id:
            pieces.append([])
    token = tokenizer.convert_ids_to_tokens(media_id)
    return str(token.join(tokenizer.decode(piece, clean_up_tokenization_spaces=False) for piece in pieces))


def _surplus(processor: Any, runs: Mapping[tuple[int, int], tuple[int, ...]], name: str) -> int:
    """How many more tokens the processor's own method counts than it writes: always the same, or it is of no use."""
    several = next((size for size, lengths in runs.items() if len(lengths) > 1), None)
    if several is not None:
        raise CapabilityError(f"{name}: an image becomes several runs of tokens, of lengths that depend on its size")
    differences: dict[int, tuple[int, int]] = {}
    for size, (length,) in runs.items():
        tokens = predicted_tokens(processor, *size)
        if tokens is None:
            raise CapabilityError(
                f"{name}: an image's number of tokens depends on its size, and {type(processor).__name__} has no"
                f" _get_num_multimodal_tokens that tells it (asked for {size[1]}x{size[0]})"
            )
        differences[tokens - length] = size
    if len(differences) > 1:
        one, other = list(differences.values())[:2]
        raise CapabilityError(
            f"{name}: {type(processor).__name__}._get_num_multimodal_tokens is wrong for this processor's settings"
            f" (by another number for {one[1]}x{one[0]} than for {other[1]}x{other[0]})"
        )
    return next(iter(differences))


def _differ_together(called: Called, runs: Mapping[tuple[int, int], tuple[int, ...]]) -> bool:
    """Whether two images in one sample become other tokens than each alone."""
    pair = [size for size in ((300, 451), (64, 64), (337, 449)) if size in runs][:2]
    try:
        made = called(images=[[plain_image(*size) for size in pair]])["token_runs"].tolist()
    except ValueError:
        return True
    return bool(made != [length for size in pair for length in runs[size]])


def find_joins(rule: MeasuredImageRule, name: str) -> dict[str, str]:
    """Media key → the join that makes of two rows what the processor makes of both at once; raises CapabilityError."""
    sizes = [(300, 451), (90, 64)]
    alone = [tensors_of(rule.called, [[size]]) for size in sizes]
    try:
        together = tensors_of(rule.called, [[size] for size in sizes])
    except ValueError as error:
        raise CapabilityError(f"{name}: the processor takes no batch of two samples: {error}") from error
    joins = {}
    for key in rule.model_keys:
        fitting = [how for how in JOINS if _equals(how, [tensors[key] for tensors in alone], together[key])]
        if not fitting:
            raise CapabilityError(
                f"{name}: the rows of {key} are joined in a way that packloom does not know"
                f" ({[list(tensors[key].shape) for tensors in alone]} → {list(together[key].shape)})"
            )
        joins[key] = fitting[0]
    return joins


def _equals(how: str, rows: Sequence[Tensor], expected: Tensor) -> bool:
    try:
        return torch.equal(join(how, rows), expected)
    except (BatchError, RuntimeError):
        return False
