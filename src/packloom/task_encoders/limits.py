"""Samples and their limits in; the sample, cut where that is safe, or a refusal with both numbers out."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable

import numpy as np

from packloom.config import SampleConfig, SampleLimits
from packloom.errors import BudgetError
from packloom.types import EncodedMedia, EncodedSample, MediaKind


def check_pixels(name: str, height: int, width: int, limits: SampleLimits) -> None:
    """Refuse an image whose header announces more pixels than allowed, before anything is decoded."""
    what = f"{name} is {width}x{height} = {height * width} pixels"
    _refuse_above(height * width, limits.max_pixels, what, name="pixels")


def check_seconds(name: str, seconds: float, limit: float | None, *, kind: MediaKind) -> None:
    """Refuse a video or audio that its header says is longer than ``limit``."""
    _refuse_above(seconds, limit, f"{name} lasts {seconds:.1f} seconds", name=f"{kind}_seconds")


def check_count(number: int, limit: int | None, *, kind: MediaKind) -> None:
    """Refuse too many media of a kind."""
    _refuse_above(number, limit, f"{number} {kind}s", name=f"{kind}s")


def check_tokens(media: Iterable[EncodedMedia], limit: int | None, *, kind: MediaKind, hint: str = "") -> None:
    """Refuse media of a kind that take too many tokens together."""
    tokens = sum(item.num_tokens for item in media)
    _refuse_above(tokens, limit, f"{tokens} {kind} tokens", name=f"{kind}_tokens", hint=hint)


def _refuse_above(number: float, limit: float | None, what: str, *, name: str, hint: str = "") -> None:
    if limit is not None and number > limit:
        raise BudgetError(f"{what}; the limit max_{name} is {limit}", code=f"budget.{name}", hint=hint)


def fit_length(sample: EncodedSample, config: SampleConfig, media_ids: np.ndarray) -> EncodedSample:
    """Hold a sample to max_length: refuse a longer one, or cut its end where the policy says so.

    A cut never falls inside or before a medium and never leaves a sample without trained tokens: those are refused.
    """
    length = config.max_length
    if length is None or sample.num_tokens <= length:
        return sample
    over = f"{sample.num_tokens} tokens; max_length is {length}"
    if config.overlong == "drop":
        raise BudgetError(over, code="budget.length", hint="raise max_length, or set overlong='truncate'")
    media_places = np.flatnonzero(np.isin(sample.input_ids.numpy(), media_ids))
    if len(media_places) and media_places[-1] >= length:
        raise BudgetError(
            f"{over}, and a cut there would lose or split a medium (the last ends at token {media_places[-1] + 1})",
            code="budget.truncates_media",
            hint="raise max_length or lower max_pixels",
        )
    if not bool(sample.loss_mask[:length].any()):
        raise BudgetError(f"{over}, and nothing to train on stands before that", code="budget.truncates_answer")
    return dataclasses.replace(
        sample,
        input_ids=sample.input_ids[:length].clone(),
        loss_mask=sample.loss_mask[:length].clone(),
        position_ids=sample.position_ids[:, :length].clone(),
        token_tensors={name: tensor[:length].clone() for name, tensor in sample.token_tensors.items()},
    )
