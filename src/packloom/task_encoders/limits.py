"""Samples and their limits in; the sample, cut where that is safe, or a refusal with both numbers out."""

from __future__ import annotations

import dataclasses

import numpy as np

from packloom.config import SampleConfig, SampleLimits
from packloom.errors import BudgetError
from packloom.types import EncodedMedia, EncodedSample


def check_pixels(name: str, height: int, width: int, limits: SampleLimits) -> None:
    """Refuse an image whose header announces more pixels than allowed, before anything is decoded."""
    if limits.max_pixels is not None and height * width > limits.max_pixels:
        raise BudgetError(
            f"{name} is {width}x{height} = {height * width} pixels; the limit max_pixels is {limits.max_pixels}",
            code="budget.pixels",
        )


def check_images(media: list[EncodedMedia], limits: SampleLimits) -> None:
    """Refuse too many images, or too many image tokens."""
    if limits.max_images is not None and len(media) > limits.max_images:
        raise BudgetError(f"{len(media)} images; the limit max_images is {limits.max_images}", code="budget.images")
    tokens = sum(item.num_tokens for item in media)
    if limits.max_image_tokens is not None and tokens > limits.max_image_tokens:
        raise BudgetError(
            f"{tokens} image tokens; the limit max_image_tokens is {limits.max_image_tokens}",
            code="budget.image_tokens",
        )


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
