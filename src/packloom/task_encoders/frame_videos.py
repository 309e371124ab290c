"""Videos of the families that see whole frames: a clip in; its frames, the text around them, and their pixels, out.

LLaVA-OneVision writes one run of tokens per video. SmolVLM and InternVL write each frame as an image of its own, and
give it to the model under the name of images.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor
from transformers.image_utils import OPENAI_CLIP_MEAN, OPENAI_CLIP_STD

from packloom.pixels import decode_pixels
from packloom.task_encoders.family import ImageLayout
from packloom.task_encoders.pixel_resize import PixelResize, planes_of
from packloom.task_encoders.video import Clip
from packloom.task_encoders.video_processors import run_video_processor
from packloom.task_encoders.video_sampling import Sampling, SamplingRule, frames_of
from packloom.types import Frames

#: The key of frames that the model takes as images.
IMAGE_KEY = "pixel_values"
#: What ``LlavaOnevisionVideoProcessor`` and ``InternVLVideoProcessor`` do where nothing else is set.
CLIP_FRAMES = {
    "do_resize": True,
    "do_center_crop": False,
    "do_rescale": True,
    "do_normalize": True,
    "rescale_factor": 1 / 255,
    "resample": 3,  # bicubic
    "image_mean": OPENAI_CLIP_MEAN,
    "image_std": OPENAI_CLIP_STD,
    "size": {"height": 384, "width": 384},
    "num_frames": None,
    "fps": None,
}

#: (height, width) of a frame → the sizes that it is resized to, one after the other
Sizes = Callable[[int, int], "Sequence[tuple[int, int]]"]


@dataclass(frozen=True, kw_only=True)
class FrameVideoRule:
    """Every frame becomes one picture of the same size.

    ``write`` is the text of a video, in which a media token stands for each of ``runs`` of a number of frames.
    """

    placeholder: str
    token: str
    class_name: str  # of the video processor
    write: Callable[[Frames], str]
    runs: Callable[[int], tuple[int, ...]]
    sizes: Sizes
    side: tuple[int, int]  # (height, width) of a frame as the model is given it
    patches: int  # of one frame, for the media budget
    sampling: Sampling
    sampling_rule: SamplingRule
    resize: PixelResize | None  # None: only ``processor`` can
    table: Tensor  # [C, 256], see pixels.decode_pixels
    key: str = IMAGE_KEY
    batched: bool = False  # frames as [1, F, C, H, W], else [F, C, H, W]
    mask_key: str = ""  # of a mask [1, F, H, W] that is 1 throughout, as nothing is padded here
    as_bytes: bool = False
    processor: Any | None = None  # transformers' own, which then makes the tensors
    options: Mapping[str, Any] = field(default_factory=dict)  # of its calls

    @property
    def model_keys(self) -> tuple[str, ...]:
        """The tensors that the model reads."""
        return (self.key, self.mask_key) if self.mask_key else (self.key,)

    @property
    def pixel_table(self) -> Tensor | None:
        """The table of the bytes that ``process`` gives; None where it gives floats."""
        return self.table if self.as_bytes else None

    @property
    def pixel_frames(self) -> int:
        """Bytes become floats of the same shape."""
        return 0

    def in_bytes(self) -> FrameVideoRule:
        """The same rule with bytes, where the model has a key of its own for videos: images have another table."""
        return replace(self, as_bytes=self.key != IMAGE_KEY)

    def sample(self, clip: Clip) -> Frames:
        """The frames that the processor's own rule takes; raises MediaError where nothing says how many."""
        return frames_of(self.sampling_rule(clip.num_frames, clip.fps, self.sampling), clip.seconds, clip.fps)

    def measure(self, name: str, height: int, width: int, frames: Frames) -> ImageLayout:
        """The layout of these frames, which is the same for every size."""
        count = len(frames.indices)
        return ImageLayout(
            kind="video", text=self.write(frames), runs=self.runs(count), num_patches=count * self.patches
        )

    def shrink(self, frame: np.ndarray, num_frames: int) -> np.ndarray:
        """[H, W, 3] uint8 → [C, h, w] uint8; as it is for the processor."""
        if self.processor is not None or self.resize is None:
            return planes_of(frame)
        for height, width in self.sizes(*frame.shape[:2]):
            frame = self.resize(frame, height, width)
        return planes_of(frame)

    def process(self, planes: np.ndarray, frames: Frames) -> dict[str, Tensor]:
        """``key``, float32 or uint8, and ``mask_key``; see ``batched``."""
        if self.processor is not None:
            return self._adopted(run_video_processor(self.processor, planes, self.options))
        pixels = torch.from_numpy(planes)
        if not self.as_bytes:
            pixels = decode_pixels(pixels, self.table)
        return self._made(pixels)

    def _adopted(self, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Some processors call frames images, some do not."""
        return self._made(tensors.get("pixel_values_videos", tensors.get(IMAGE_KEY, torch.empty(0)))[0])

    def _made(self, pixels: Tensor) -> dict[str, Tensor]:
        made = {self.key: pixels[None] if self.batched else pixels}
        if self.mask_key:
            made[self.mask_key] = torch.ones((1, len(pixels), *pixels.shape[-2:]), dtype=torch.int64)
        return made

    def produced(self, tensors: dict[str, Tensor]) -> object:
        """The runs of as many frames as there are, and their size."""
        pixels = tensors[self.key]
        return self.runs(pixels.shape[-4]), tuple(pixels.shape[-2:])

    def expected(self, layout: ImageLayout) -> object:
        """The same, as predicted."""
        return layout.runs, self.side


def one_size(side: tuple[int, int], height: int, width: int) -> list[tuple[int, int]]:
    """The sizes of a frame that is stretched to ``side``, whatever it is."""
    return [side]


def one_run_each(tokens: int, count: int) -> tuple[int, ...]:
    """The runs of so many frames that are images of their own."""
    return (tokens,) * count
