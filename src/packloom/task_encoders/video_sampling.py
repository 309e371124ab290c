"""A clip's number of frames and rate in; the indices of the frames that a model is given, by its processor's rule, out.

Each rule gives what ``sample_frames`` of that video processor in transformers 5.24 gives, and goes on where that fails
(fewer frames than one temporal patch holds).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch

from packloom.config_video import VideoConfig
from packloom.types import Frames


@dataclass(frozen=True, kw_only=True)
class Sampling:
    """Which frames are asked for; all numbers are known, see ``sampling_of``."""

    fps: float | None  # None: num_frames
    num_frames: int | None  # None as well: a rate that the rule chooses by the clip's length
    min_frames: int
    max_frames: int
    group: int  # frames of a temporal patch
    max_seconds: float = math.inf  # of a clip that is sampled at the full rate, where a processor has such a bound


#: (number of frames, frames per second, sampling) → ascending indices, at least one
SamplingRule = Callable[[int, float, Sampling], "list[int]"]


def sampling_of(
    config: VideoConfig,
    *,
    fps: float | None,
    num_frames: int | None = None,
    min_frames: int,
    max_frames: int,
    group: int,
) -> Sampling:
    """The settings where they say something, else the processor's own numbers; its ``num_frames`` before its rate."""
    low = min_frames if config.min_frames is None else config.min_frames
    high = max_frames if config.max_frames is None else config.max_frames
    if config.min_frames is None:
        low = min(low, high)
    if config.max_frames is None:
        high = max(low, high)
    number = num_frames if config.num_frames is None and config.fps is None else config.num_frames
    rate = None if number is not None else (fps if config.fps is None else config.fps)
    return Sampling(fps=rate, num_frames=number, min_frames=low, max_frames=high, group=group)


def whole_groups(total: int, rate: float, sampling: Sampling) -> list[int]:
    """Qwen2-VL and Qwen2.5-VL: whole temporal patches, at equal steps from the first frame on.

    A clip shorter than a temporal patch is taken whole. Source: ``Qwen2VLVideoProcessor.sample_frames``.
    """
    group = sampling.group
    if total < group:
        return list(range(total))
    if sampling.fps is None:
        count = float(min(round((sampling.num_frames or 0) / group) * group, total // group * group))
    else:
        most = math.floor(min(sampling.max_frames, total) / group) * group
        count = min(max(total / rate * sampling.fps, sampling.min_frames), most, total)
    number = max(math.floor(count / group) * group, group)
    # float32 steps, as the processor's; a rounding step beyond the end would be one frame too many
    steps = torch.arange(0, total, total / number).int().tolist()
    return [int(step) for step in steps[:number]]


def even_ends(total: int, rate: float, sampling: Sampling) -> list[int]:
    """Qwen3-VL and Qwen3.5: the first frame, the last, and others evenly between.

    Source: ``Qwen3VLVideoProcessor.sample_frames``.
    """
    if sampling.fps is None:
        number = min(sampling.num_frames or 1, total)
    else:
        number = min(max(int(total / rate * sampling.fps), sampling.min_frames), sampling.max_frames, total)
    return [int(index) for index in np.linspace(0, total - 1, max(number, 1)).round()]


def from_start(total: int, rate: float, sampling: Sampling) -> list[int]:
    """GLM-4.1V, 4.5V and 4.6V: a frame for each step of time; an odd number repeats the last one.

    Source: ``Glm4vVideoProcessor.sample_frames``. It bounds the clip's seconds; more frames than ``max_frames`` are
    spread evenly here, as a number of frames is.
    """
    last, duration = total - 1, total / rate
    if sampling.num_frames is not None or sampling.fps is None:
        picked = even_ends(total, rate, sampling)
    elif duration <= sampling.max_seconds:
        count = max(math.floor(duration * sampling.fps), 1)
        picked = [min(last, math.ceil(number * rate / sampling.fps)) for number in range(count)]
    else:
        count = int(sampling.max_seconds * sampling.fps)
        seconds = np.linspace(0, duration, count) if count < total else np.arange(total) / rate
        picked = [min(last, math.ceil(second * rate)) for second in seconds]
        if count >= total:
            picked = list(range(total))
    unique = sorted(set(picked))
    if len(unique) > sampling.max_frames:
        chosen = np.linspace(0, len(unique) - 1, sampling.max_frames).round().astype(int)
        unique = [unique[place] for place in chosen]
    return unique + unique[-1:] * (-len(unique) % 2)


#: GLM-4.6V: clips up to so many seconds → temporal patches per second; longer ones as the last.
_RATES = ((30, 3.0), (300, 1.0), (2400, 0.5))
_MOST_FRAMES = 640


def by_duration(total: int, rate: float, sampling: Sampling) -> list[int]:
    """GLM-4.6V, unless the settings name a rate or a number: the longer a clip, the fewer frames per second.

    Source: ``Glm46VVideoProcessor.sample_frames``.
    """
    if sampling.fps is not None or sampling.num_frames is not None:
        return from_start(total, rate, sampling)
    duration, group = total / rate, sampling.group
    seconds = min(duration, _RATES[-1][0])
    target = next(frames for limit, frames in _RATES if seconds <= limit)
    wanted = min(int(seconds * target * group), _MOST_FRAMES, max(sampling.max_frames, 1))
    picked: list[int] = []
    if total >= wanted:
        due, step = 0.0, 1 / (group * target)
        for index in range(total):
            if index * (1 / rate) >= due:
                due += step
                picked.append(index)
                if due >= int(duration):
                    break
    if len(picked) != wanted:
        first, last = (picked[0], picked[-1]) if 0 < len(picked) < wanted <= total else (0, total - 1)
        picked = np.linspace(first, last, max(wanted, 1), dtype=int).tolist()
    unique = sorted(set(picked))
    return unique + unique[-1:] * (-len(unique) % 2)


def frames_of(indices: list[int], seconds: np.ndarray, fps: float) -> Frames:
    """What is carried along: indices, their times, and how many were taken per second of the clip."""
    return Frames(
        indices=tuple(indices),
        seconds=tuple(float(seconds[index]) for index in indices),
        fps=len(indices) / len(seconds) * fps,
        duration=len(seconds) / fps,
    )
