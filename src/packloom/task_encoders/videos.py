"""Compressed videos in; their frames and token counts from the container, and later the model's tensors, out."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial

from torch import Tensor

from packloom.collates.media_joins import join
from packloom.config import SampleLimits
from packloom.errors import BatchError, MediaError
from packloom.task_encoders.family import ImageLayout, VideoRule
from packloom.task_encoders.limits import check_count, check_pixels, check_seconds, check_tokens
from packloom.task_encoders.video import decode_frames, read_clip
from packloom.types import EncodedMedia, Media


@dataclass(frozen=True, kw_only=True)
class VideoLoader:
    """Measures videos by their containers, and decodes and processes only the frames that were chosen.

    ``rule`` is None for an encoder that takes no videos: then any is refused, with the reason ``refusal``. ``joins``
    are those of the family, see ``collates.media_joins``.
    """

    name: str
    rule: VideoRule | None
    refusal: str = ""
    joins: Mapping[str, str] = field(default_factory=dict)

    def measure(self, media: Sequence[Media], limits: SampleLimits) -> list[tuple[EncodedMedia, ImageLayout]]:
        """Each video with its frames and layout, nothing decoded. Raises MediaError or BudgetError."""
        check_count(len(media), limits.max_videos, kind="video")
        measured = [self._measure(item, limits) for item in media]
        hint = "lower video.fps, video.max_frames or video.max_pixels"
        check_tokens((encoded for encoded, _ in measured), limits.max_video_tokens, kind="video", hint=hint)
        return measured

    def _measure(self, media: Media, limits: SampleLimits) -> tuple[EncodedMedia, ImageLayout]:
        rule, clip = self._rule(media), read_clip(media)
        check_pixels(clip.name, clip.height, clip.width, limits)
        check_seconds(clip.name, clip.duration, limits.max_video_seconds, kind="video")
        frames = rule.sample(clip)
        layout = rule.measure(media.name, clip.height, clip.width, frames)
        encoded = EncodedMedia(
            media=media,
            height=clip.height,
            width=clip.width,
            num_tokens=sum(layout.runs),
            num_patches=layout.num_patches,
            grid_thw=layout.grid_thw,
            frames=frames,
        )
        return encoded, layout

    def load(self, media: Sequence[EncodedMedia]) -> dict[str, Tensor]:
        """The tensors of one sample's videos, in order; raises MediaError for damaged or missing frames."""
        if not media:
            return {}
        made = [self._load(item) for item in media]
        return joined(self._rule(media[0].media).model_keys, made, self.joins)

    def _load(self, item: EncodedMedia) -> dict[str, Tensor]:
        rule = self._rule(item.media)
        if item.frames is None:
            raise MediaError(f"{item.media.name}: its frames were not chosen", code="media.unsupported")
        clip = read_clip(item.media)
        if (clip.height, clip.width) != (item.height, item.width) or max(item.frames.indices) >= clip.num_frames:
            raise MediaError(f"{item.media.name} is not the video that was measured", code="media.size_differs")
        layout = rule.measure(item.media.name, item.height, item.width, item.frames)
        shrink = partial(rule.shrink, num_frames=len(item.frames.indices))
        tensors = rule.process(decode_frames(item.media, clip, item.frames.indices, shrink), item.frames)
        expected, produced = rule.expected(layout), rule.produced(tensors)
        if expected != produced:
            raise MediaError(
                f"{item.media.name}: {expected} was predicted from the header, but {produced} was made",
                code="media.count_differs",
            )
        return tensors

    def _rule(self, media: Media) -> VideoRule:
        if self.rule is None:
            raise MediaError(
                f"{media.name} is video, which this encoder ({self.name}) does not take: {self.refusal}",
                code="media.unsupported",
            )
        return self.rule


def joined(keys: Iterable[str], made: Sequence[Mapping[str, Tensor]], joins: Mapping[str, str]) -> dict[str, Tensor]:
    """The tensors of one sample's media as one, in order; raises MediaError for shapes that do not go together."""
    if len(made) == 1:
        return {key: made[0][key] for key in keys}
    try:
        return {key: join(joins.get(key, "concat"), [tensors[key] for tensors in made]) for key in keys}
    except BatchError as error:
        raise MediaError(
            f"the media of this sample do not fit into one tensor: {error}", code="media.size_differs"
        ) from error
