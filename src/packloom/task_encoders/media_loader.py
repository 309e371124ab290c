"""One sample's media of all kinds in; each with its layout, in order, and later the tensors of all kinds out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor

from packloom.config import SampleLimits
from packloom.task_encoders.audios import AudioLoader
from packloom.task_encoders.cook_parts import KINDS
from packloom.task_encoders.family import ImageLayout
from packloom.task_encoders.media import ImageLoader
from packloom.task_encoders.pixel_bytes import in_floats
from packloom.task_encoders.videos import VideoLoader, joined
from packloom.types import EncodedMedia, EncodedSample, Media, MediaKind


@dataclass(frozen=True, kw_only=True)
class MediaLoader:
    """Sends each medium to the loader of its kind."""

    images: ImageLoader
    videos: VideoLoader
    audios: AudioLoader

    def measure(self, media: Sequence[Media], limits: SampleLimits) -> list[tuple[EncodedMedia, ImageLayout]]:
        """Each medium with its layout, nothing decoded. Raises MediaError or BudgetError."""
        if all(item.kind == "image" for item in media):
            return self.images.measure(media, limits)
        loaders: dict[MediaKind, ImageLoader | VideoLoader | AudioLoader] = {
            "image": self.images,
            "video": self.videos,
            "audio": self.audios,
        }
        measured = {
            kind: iter(loader.measure([item for item in media if item.kind == kind], limits))
            for kind, loader in loaders.items()
        }
        return [next(measured[item.kind]) for item in media]

    def rooms(self, samples: Sequence[EncodedSample]) -> Sequence[Tensor | None]:
        """See ``ImageLoader.rooms``; other kinds need none."""
        return self.images.rooms(
            [sum(item.num_patches for item in sample.media if item.media.kind == "image") for sample in samples]
        )

    def load(self, media: Sequence[EncodedMedia], room: Tensor | None = None) -> dict[str, Tensor]:
        """Decode and process one sample's media; raises MediaError if a count differs from the predicted one."""
        of = {kind: [item for item in media if item.media.kind == kind] for kind in KINDS}
        if of["image"] and of["video"] and self._share_keys():
            return self._in_order([item for item in media if item.media.kind != "audio"]) | self.audios.load(
                of["audio"]
            )
        return self.images.load(of["image"], room) | self.videos.load(of["video"]) | self.audios.load(of["audio"])

    def _share_keys(self) -> bool:
        """Whether the model takes the frames of videos as images."""
        images, videos = self.images.rule, self.videos.rule
        return images is not None and videos is not None and not set(videos.model_keys).isdisjoint(images.model_keys)

    def _in_order(self, media: Sequence[EncodedMedia]) -> dict[str, Tensor]:
        """Images and frames under the same keys, in the order of their places, as floats."""
        made = [
            self.videos.load([item])
            if item.media.kind == "video"
            else in_floats(self.images.load([item]), self.images.fast)
            for item in media
        ]
        return joined(made[0], made, self.videos.joins)
