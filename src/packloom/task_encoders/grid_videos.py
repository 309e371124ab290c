"""Videos of the families with patch grids: a clip in; its frames, its grid, its text with times, and its patches out.

Qwen2-VL and Qwen2.5-VL write one run of tokens per video. Qwen3-VL, Qwen3.5 and GLM write each temporal patch of it as
an image of its own, with its time.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from packloom.errors import MediaError
from packloom.pixels import decode_pixels
from packloom.rooms import hand_over_room
from packloom.task_encoders.family import ImageLayout
from packloom.task_encoders.grid_images import as_lines, enlarged, refuse_thin, within_bounds
from packloom.task_encoders.pixel_resize import PixelResize, planes_of
from packloom.task_encoders.video import Clip
from packloom.task_encoders.video_processors import run_video_processor
from packloom.task_encoders.video_sampling import Sampling, SamplingRule, frames_of
from packloom.types import Frames

#: (frames, height, width) → (height, width) of each frame after resizing; raises MediaError
Sizing = Callable[[int, int, int], "tuple[int, int]"]


@dataclass(frozen=True, kw_only=True)
class GridVideoRule:
    """Frames are resized alike, and cut into patches of several frames each; one token for merge × merge patches.

    ``stamp`` writes one temporal patch with its time; None: the whole video is one run.
    """

    placeholder: str
    token: str
    class_name: str  # of the video processor
    patch_size: int
    merge_size: int
    temporal_patch_size: int
    sampling: Sampling
    sampling_rule: SamplingRule
    sizing: Sizing
    resize: PixelResize
    table: Tensor  # [C, 256], see pixels.decode_pixels
    whole_patches: bool = False  # a clip of fewer frames than a temporal patch repeats its last one
    stamp: Callable[[float, float], str] | None = None  # (time of the first frame of the patch, of its last) → text
    tokens_per_second: float | None = None  # of positions along time; None: one for each temporal patch
    seconds_first: bool = False  # the model multiplies positions by the seconds of a patch, and then by that rate
    reference_positions: bool = True
    seconds_key: str = ""  # the tensor with the seconds of a temporal patch, if there is one
    as_bytes: bool = False
    processor: Any | None = None  # transformers' own, which then makes the pixels
    options: Mapping[str, Any] = field(default_factory=dict)  # of its calls: the settings that it does not know

    @property
    def model_keys(self) -> tuple[str, ...]:
        """The tensors that the model reads."""
        seconds = (self.seconds_key,) if self.seconds_key else ()
        return ("pixel_values_videos", "video_grid_thw", *seconds)

    @property
    def pixel_table(self) -> Tensor | None:
        """The table of the bytes that ``process`` gives; None where it gives floats."""
        return self.table if self.as_bytes else None

    @property
    def pixel_frames(self) -> int:
        """A patch holds each of its frames, so none is repeated; it is flattened."""
        return 1

    def in_bytes(self) -> GridVideoRule:
        """The same rule, with bytes."""
        return replace(self, as_bytes=True)

    def sample(self, clip: Clip) -> Frames:
        """The frames that the processor's own rule takes."""
        indices = self.sampling_rule(clip.num_frames, clip.fps, self.sampling)
        if self.whole_patches:
            indices += indices[-1:] * (self.temporal_patch_size - len(indices))
        return frames_of(indices, clip.seconds, clip.fps)

    def measure(self, name: str, height: int, width: int, frames: Frames) -> ImageLayout:
        """The layout of these frames; raises MediaError for sizes that the processor refuses."""
        try:
            rows, columns = (side // self.patch_size for side in self.sizing(len(frames.indices), height, width))
        except MediaError as error:
            raise MediaError(f"{name}: {error.reason}", code=error.code, hint=error.hint) from error
        steps = -(-len(frames.indices) // self.temporal_patch_size)
        tokens = rows * columns // self.merge_size**2
        grid = (rows // self.merge_size, columns // self.merge_size)
        return ImageLayout(
            kind="video",
            text=self.token if self.stamp is None else self._stamped(frames, steps),
            runs=(steps * tokens,) if self.stamp is None else (tokens,) * steps,
            num_patches=steps * rows * columns,
            grid_thw=(steps, rows, columns),
            token_grid=(steps if self.stamp is None else 1, *grid),
            per_run=self.stamp is not None,
            time_step=self._time_step(frames),
            time_scale=self.tokens_per_second if self.tokens_per_second and self.seconds_first else 1.0,
            advance=max(grid) if self.stamp is None and not self.reference_positions else None,
        )

    def _stamped(self, frames: Frames, steps: int) -> str:
        size = self.temporal_patch_size
        seconds = [*frames.seconds, *frames.seconds[-1:] * (steps * size - len(frames.seconds))]
        pairs = zip(seconds[::size], seconds[size - 1 :: size], strict=True)
        return "".join(self.stamp(first, last) for first, last in pairs) if self.stamp else ""

    def _time_step(self, frames: Frames) -> float:
        if self.tokens_per_second is None:
            return 1.0
        return self._seconds(frames) * (1.0 if self.seconds_first else self.tokens_per_second)

    def _seconds(self, frames: Frames) -> float:
        """Of one temporal patch, by the rate at which frames were really taken."""
        return self.temporal_patch_size / frames.fps

    def shrink(self, frame: np.ndarray, num_frames: int) -> np.ndarray:
        """[H, W, 3] uint8 → [C, h, w] uint8; as it is for the processor."""
        if self.processor is None:
            frame = self.resize(frame, *self.sizing(num_frames, *frame.shape[:2]))
        return planes_of(frame)

    def process(self, planes: np.ndarray, frames: Frames) -> dict[str, Tensor]:
        """``pixel_values_videos`` [P, D] float32 or [P, C, F * h, w] uint8, ``video_grid_thw`` [1, 3].

        And [1] under ``seconds_key``. F are the frames of a patch.
        """
        if self.processor is not None:
            found = run_video_processor(self.processor, planes, self.options)
            made = {name: found[name] for name in ("pixel_values_videos", "video_grid_thw")}
        else:
            patches, grid = self._patches(planes)
            pixels = patches if self.as_bytes else decode_pixels(patches, self.table, frames=self.pixel_frames)
            made = {"pixel_values_videos": pixels, "video_grid_thw": torch.tensor([grid])}
        if self.seconds_key:
            made[self.seconds_key] = torch.tensor([self._seconds(frames)])
        return made

    def _patches(self, planes: np.ndarray) -> tuple[Tensor, tuple[int, int, int]]:
        """[F, C, H, W] → [P, C, depth * h, w]; the last frame is repeated to whole temporal patches.

        Source: ``patchify`` of the Qwen2-VL video processor.
        """
        size, merge, depth = self.patch_size, self.merge_size, self.temporal_patch_size
        if missing := -len(planes) % depth:
            planes = np.concatenate((planes, planes[-1:].repeat(missing, axis=0)))
        count, channels, height, width = planes.shape
        steps, rows, columns = count // depth, height // size, width // size
        lines = as_lines(planes, size).reshape(
            steps, depth, channels, rows // merge, merge, size, columns // merge, merge
        )
        moved = lines.transpose(0, 3, 6, 4, 7, 2, 1, 5)
        room = hand_over_room((steps * rows * columns, channels, depth * size, size), torch.uint8)
        np.copyto(as_lines(room.numpy(), size).reshape(moved.shape), moved)
        return room, (steps, rows, columns)

    def produced(self, tensors: dict[str, Tensor]) -> object:
        """The grid, and the number of patches."""
        return tuple(tensors["video_grid_thw"][0].tolist()), len(tensors["pixel_values_videos"])

    def expected(self, layout: ImageLayout) -> object:
        """The same, as predicted."""
        return layout.grid_thw, layout.num_patches


def fit_volume(
    frames: int, height: int, width: int, *, depth: int, factor: int, min_pixels: int, max_pixels: int
) -> tuple[int, int]:
    """(height, width) of frames whose pixels are bounded all together.

    Raises MediaError above the aspect-ratio limit. Source: ``smart_resize`` of the video processors of Qwen3-VL and
    GLM-4V.
    """
    height, width = enlarged(height, width, factor)
    refuse_thin(height, width, what=f"frames of {width}x{height} are", hint="crop or pad them")
    return within_bounds(
        height,
        width,
        factor=factor,
        min_pixels=min_pixels,
        max_pixels=max_pixels,
        frames=frames,
        counted=round(frames / depth) * depth,
    )
