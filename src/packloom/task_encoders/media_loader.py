"""One sample's media of all kinds in; each with its layout, in order, and later the tensors of all kinds out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor

from packloom.config import SampleLimits
from packloom.task_encoders.family import ImageLayout
from packloom.task_encoders.media import ImageLoader
from packloom.task_encoders.videos import VideoLoader
from packloom.types import EncodedMedia, EncodedSample, Media


@dataclass(frozen=True, kw_only=True)
class MediaLoader:
    """Sends each medium to the loader of its kind. What neither takes, the one for images refuses."""

    images: ImageLoader
    videos: VideoLoader

    def measure(self, media: Sequence[Media], limits: SampleLimits) -> list[tuple[EncodedMedia, ImageLayout]]:
        """Each medium with its layout, nothing decoded. Raises MediaError or BudgetError."""
        videos = [item for item in media if self._is_video(item)]
        if not videos:
            return self.images.measure(media, limits)
        images = iter(self.images.measure([item for item in media if not self._is_video(item)], limits))
        clips = iter(self.videos.measure(videos, limits))
        return [next(clips) if self._is_video(item) else next(images) for item in media]

    def rooms(self, samples: Sequence[EncodedSample]) -> Sequence[Tensor | None]:
        """See ``ImageLoader.rooms``; videos need none."""
        return self.images.rooms(
            [sum(item.num_patches for item in sample.media if not self._is_video(item.media)) for sample in samples]
        )

    def load(self, media: Sequence[EncodedMedia], room: Tensor | None = None) -> dict[str, Tensor]:
        """Decode and process one sample's media; raises MediaError if a count differs from the predicted one."""
        videos = [item for item in media if self._is_video(item.media)]
        if not videos:
            return self.images.load(media, room)
        images = [item for item in media if not self._is_video(item.media)]
        return self.images.load(images, room) | self.videos.load(videos)

    def _is_video(self, media: Media) -> bool:
        return media.kind == "video" and self.videos.rule is not None
