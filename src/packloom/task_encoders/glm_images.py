"""GLM-4.1V, 4.5V and 4.6V images: a size in, its patch grid and run of placeholder tokens out."""

from __future__ import annotations

from dataclasses import dataclass

from packloom.errors import ConfigError
from packloom.task_encoders.grid_images import GridImageRule, enlarged, refuse_thin, with_pixel_bounds, within_bounds
from packloom.task_encoders.processors import ProcessorParts
from packloom.task_encoders.settings_images import image_processor_of, named_token

IMAGE_TOKEN = "<|image|>"
MEDIA_TOKENS = (
    "<|begin_of_image|>",
    IMAGE_TOKEN,
    "<|end_of_image|>",
    "<|begin_of_video|>",
    "<|video|>",
    "<|end_of_video|>",
)


@dataclass(frozen=True, kw_only=True)
class GlmImageRule(GridImageRule):
    """As Qwen's grids, with two differences.

    Sides below one merged patch are scaled up first, and the pixel bounds count an image once for each frame of a
    temporal patch (so they are ``temporal_patch_size`` times an image's area).
    """

    def resized(self, height: int, width: int) -> tuple[int, int]:
        """(height, width) after resizing. Source: ``smart_resize`` of the GLM-4V image processor."""
        factor, frames = self.patch_size * self.merge_size, self.temporal_patch_size
        tall, wide = enlarged(height, width, factor)
        refuse_thin(tall, wide, what=f"an image of {width}x{height} is", hint="crop or pad it")
        return within_bounds(
            tall,
            wide,
            factor=factor,
            min_pixels=self.min_pixels,
            max_pixels=self.max_pixels,
            frames=frames,
            counted=frames,
        )


def glm_image_rule(parts: ProcessorParts) -> GlmImageRule:
    """The image geometry of a GLM-4V processor."""
    images = image_processor_of(parts)
    token = named_token(parts, "image_token", IMAGE_TOKEN)
    return GlmImageRule(
        placeholder=token,
        token=token,
        patch_size=images.patch_size,
        merge_size=images.merge_size,
        min_pixels=images.size["shortest_edge"],
        max_pixels=images.size["longest_edge"],
        temporal_patch_size=images.temporal_patch_size,
    )


def glm_pixel_bounds(parts: ProcessorParts, min_pixels: int | None, max_pixels: int | None) -> ProcessorParts:
    """The same parts with other bounds on an image's area; a bound of None keeps the processor's own.

    The processor's settings count an image's area once per frame, so they become ``temporal_patch_size`` times these.
    Raises ConfigError.
    """
    images = image_processor_of(parts)
    frames = images.temporal_patch_size
    low = images.size["shortest_edge"] // frames if min_pixels is None else min_pixels
    high = images.size["longest_edge"] // frames if max_pixels is None else max_pixels
    if low > high:
        raise ConfigError(f"min_pixels {low} is above max_pixels {high}: set both")
    return with_pixel_bounds(
        parts,
        None if min_pixels is None else min_pixels * frames,
        None if max_pixels is None else max_pixels * frames,
    )
