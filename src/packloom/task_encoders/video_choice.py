"""A processor, its video rule and the settings in; the rule that makes videos out: as bytes where that is proved."""

from __future__ import annotations

import logging
from dataclasses import replace
from typing import TypeVar

import numpy as np
import torch
from torch import Tensor

from packloom.config import SampleConfig
from packloom.errors import MediaError
from packloom.pixels import decode_pixels
from packloom.rng import derive_seed
from packloom.task_encoders.family import VideoRule
from packloom.task_encoders.frame_videos import FrameVideoRule
from packloom.task_encoders.grid_videos import GridVideoRule
from packloom.task_encoders.media_choice import tensor_difference
from packloom.task_encoders.processors import ProcessorParts
from packloom.task_encoders.video_processors import load_video_processor
from packloom.types import Frames

logger = logging.getLogger(__name__)

_Rule = TypeVar("_Rule", GridVideoRule, FrameVideoRule)

#: (frames, height, width) of the probes, longer than a temporal patch: a clip that most processors enlarge, an odd one
_PROBES = ((8, 37, 53), (9, 150, 220))


def choose_videos(parts: ProcessorParts, rule: VideoRule | None, config: SampleConfig) -> VideoRule | None:
    """The rule with bytes where they equal transformers' own video processor; a rule of a user's own as it is.

    That processor needs torchvision. Where it is there, the rule is compared with it on probes; where they differ, and
    for ``media="exact_hf"``, it makes the pixels, with a warning that says why. Without it there is nothing to compare
    with; then ``"exact_hf"`` means floats.
    """
    if isinstance(rule, GridVideoRule):
        return _chosen(parts, rule, config)
    return _chosen(parts, rule, config) if isinstance(rule, FrameVideoRule) else rule


def _chosen(parts: ProcessorParts, rule: _Rule, config: SampleConfig) -> _Rule:
    processor = load_video_processor(parts, rule.class_name)
    exact = None if processor is None else replace(rule, processor=processor)
    if config.media == "exact_hf":
        return exact or rule
    fast = rule.in_bytes()
    difference = "" if exact is None else find_video_difference(fast, exact)
    if exact is not None and difference:
        logger.warning(
            "%s: videos are made by transformers' own processor, since the fast path differs %s", parts.name, difference
        )
        return exact
    return fast


def find_video_difference(fast: VideoRule, exact: VideoRule) -> str:
    """What differs between the tensors of both rules on probes; "" if nothing does."""
    random = np.random.default_rng(derive_seed("video", "probe"))
    for shape in _PROBES:
        clip = random.integers(0, 256, (*shape, 3), dtype=np.uint8)
        where = f"on {shape[0]} frames of {shape[2]}x{shape[1]}"
        try:
            made, expected = _tensors(fast, clip), _tensors(exact, clip)
        except MediaError as error:
            return f"{where}: {error.reason}"
        for name in exact.model_keys:
            if difference := tensor_difference(made[name], expected[name]):
                return f"{where}, in {name}: {difference}"
    return ""


def _tensors(rule: VideoRule, clip: np.ndarray) -> dict[str, Tensor]:
    """As of a clip of two frames a second, with floats."""
    count = len(clip)
    seconds = tuple(number / 2 for number in range(count))
    frames = Frames(indices=tuple(range(count)), seconds=seconds, fps=2.0, duration=count / 2)
    made = rule.process(np.stack([rule.shrink(frame, count) for frame in clip]), frames)
    if rule.pixel_table is None:
        return made
    return {
        name: decode_pixels(tensor, rule.pixel_table, frames=rule.pixel_frames)
        if tensor.dtype == torch.uint8
        else tensor
        for name, tensor in made.items()
    }
