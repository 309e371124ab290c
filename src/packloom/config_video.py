"""How the frames of a video are chosen and sized: one frozen dataclass, a part of SampleConfig."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

from packloom.config_fields import check_types, require

#: Where transformers 5.24 writes or places a video otherwise than the models' authors do, see docs/video.md.
VideoRules = Literal["transformers", "reference"]


@dataclass(frozen=True, kw_only=True)
class VideoConfig:
    """None keeps what the model's own video processor does.

    Either ``fps`` or ``num_frames``: frames per second of the clip, or that many, spread evenly over all of it.
    """

    fps: float | None = None
    num_frames: int | None = None
    min_frames: int | None = None  # with fps: a short clip gives at least as many, if it has them
    max_frames: int | None = None  # with fps: a long clip gives at most as many, spread over all of it
    min_pixels: int | None = None  # as the processor's own bounds: of a frame for Qwen2-VL and 2.5, of all frames
    max_pixels: int | None = None  # together for Qwen3-VL, 3.5 and GLM
    cap_pixels_per_frame: bool = False  # Qwen: the option of that name of its video processor
    rules: VideoRules = "transformers"

    def __post_init__(self) -> None:
        check_types(self)
        for name in ("fps", "num_frames", "min_frames", "max_frames", "min_pixels", "max_pixels"):
            value = getattr(self, name)
            require(value is None or value > 0, f"video.{name} must be positive or null, got {value}")
        require(self.fps is None or self.fps < 1e6, f"video.fps must be a number of frames per second, got {self.fps}")
        require(self.rules in get_args(VideoRules), f"video.rules must be one of {get_args(VideoRules)}")
        require(
            self.fps is None or self.num_frames is None,
            f"video.fps {self.fps} and video.num_frames {self.num_frames} exclude each other: set one",
        )
        bounded = self.min_frames is not None or self.max_frames is not None
        require(
            self.num_frames is None or not bounded,
            "video.min_frames and video.max_frames bound what fps asks for: with num_frames they do nothing",
        )
        for low, high in (("min_frames", "max_frames"), ("min_pixels", "max_pixels")):
            least, most = getattr(self, low), getattr(self, high)
            require(least is None or most is None or least <= most, f"video.{low} {least} is above video.{high} {most}")
