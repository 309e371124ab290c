"""A clip's number of frames and rate in; the indices for the families that give the model whole frames, out.

The rules of LLaVA-OneVision, InternVL and SmolVLM. Their processors have no rate of their own: without a setting none
is guessed at.
"""

from __future__ import annotations

import numpy as np
import torch

from packloom.errors import MediaError
from packloom.task_encoders.video_sampling import Sampling

#: SmolVLM leaves out so many seconds at both ends of a long clip.
_MARGIN = 1
#: What stands for no bound on a number of frames.
UNBOUNDED = 1 << 30


def wanted_frames(total: int, rate: float, sampling: Sampling) -> int:
    """How many frames are asked for, at least one; raises MediaError where no setting says it."""
    if sampling.num_frames is not None:
        return sampling.num_frames
    if sampling.fps is None:
        raise MediaError(
            "neither the settings nor the video processor say how many frames of a video are taken",
            code="media.no_sampling",
            hint="set video=VideoConfig(num_frames=...), or fps and max_frames",
        )
    return min(max(int(total / rate * sampling.fps), sampling.min_frames, 1), sampling.max_frames)


def equal_steps(total: int, rate: float, sampling: Sampling) -> list[int]:
    """LLaVA-OneVision: the first frame and on at equal steps.

    Source: ``default_sample_indices_fn`` of transformers' video_utils. A clip of fewer frames, on which that fails,
    shows some of them several times: the model takes clips of equally many frames only.
    """
    count = wanted_frames(total, rate, sampling)
    return [number * total // count for number in range(count)]


def middles(total: int, rate: float, sampling: Sampling, *, shift: bool | float = True) -> list[int]:
    """InternVL: the middle of each of so many equal parts; ``shift`` may say another first frame.

    Source: ``InternVLVideoProcessor.sample_frames``. A clip of fewer frames, on which that fails, is taken whole.
    """
    count = min(wanted_frames(total, rate, sampling), total)
    first = total / count / 2 if shift is True else float(shift)
    steps = torch.arange(first, total, total / count).int().tolist()  # float32 steps, as the processor's
    return [int(step) for step in steps[:count]] or [total - 1]


def within_margins(total: int, rate: float, sampling: Sampling) -> list[int]:
    """SmolVLM: evenly between the ends; of a long clip its first and last second are left out.

    Source: ``SmolVLMVideoProcessor.sample_frames``. A number of frames that the settings ask for is spread over all.
    """
    first, last, duration = 0, total - 1, total / rate
    if sampling.num_frames is not None or sampling.fps is None:
        count = wanted_frames(total, rate, sampling)
    else:
        count = max(min(round(sampling.fps * duration), sampling.max_frames), sampling.min_frames, 1)
        if duration - 2 * _MARGIN > sampling.max_frames * sampling.fps:
            begin, end = int(_MARGIN * rate), min(int(total - _MARGIN * rate), last)
            first, last = (begin, end) if begin < end else (first, last)
    return [int(index) for index in np.unique(np.linspace(first, last, count, dtype=int))]
