"""Compressed audio in; its token counts from headers, and later the model's features, out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor

from packloom.config import SampleLimits
from packloom.config_audio import AudioConfig
from packloom.errors import MediaError
from packloom.task_encoders.audio import decode_sound, read_sound, resampled
from packloom.task_encoders.family import AudioRule, ImageLayout
from packloom.task_encoders.limits import check_count, check_seconds, check_tokens
from packloom.types import EncodedMedia, Media, Sound


@dataclass(frozen=True, kw_only=True)
class AudioLoader:
    """Measures audio by its header, and decodes it for the samples of a batch only.

    ``rule`` is None for an encoder that takes no audio; then any is refused.
    """

    name: str
    rule: AudioRule | None
    config: AudioConfig

    def measure(self, media: Sequence[Media], limits: SampleLimits) -> list[tuple[EncodedMedia, ImageLayout]]:
        """Each audio with its layout. Raises MediaError or BudgetError."""
        check_count(len(media), limits.max_audios, kind="audio")
        measured = [self._measure(item, limits) for item in media]
        check_tokens((encoded for encoded, _ in measured), limits.max_audio_tokens, kind="audio")
        return measured

    def _measure(self, media: Media, limits: SampleLimits) -> tuple[EncodedMedia, ImageLayout]:
        rule, sound = self._rule(media), read_sound(media)
        check_seconds(media.name, sound.seconds, limits.max_audio_seconds, kind="audio")
        layout = rule.measure(media.name, self._length(rule, media, sound))
        encoded = EncodedMedia(
            media=media,
            height=0,
            width=0,
            num_tokens=sum(layout.runs),
            num_patches=layout.num_patches,
            sound=sound,
        )
        return encoded, layout

    def _length(self, rule: AudioRule, media: Media, sound: Sound) -> int:
        """Samples at the model's rate."""
        if sound.rate != rule.rate and self.config.other_rate == "refuse":
            raise MediaError(
                f"{media.name} has {sound.rate} samples per second, the model takes {rule.rate}",
                code="media.rate",
                hint="resample the data, or set audio.other_rate='resample'",
            )
        length = resampled(sound, rule.rate)
        if length > rule.max_samples and self.config.too_long == "refuse":
            raise MediaError(
                f"{media.name} lasts {sound.seconds:.3f} seconds, the processor takes {rule.max_samples / rule.rate:g}"
                " and drops the rest",
                code="media.too_long",
                hint="cut the data, or set audio.too_long='cut' to train on the beginning alone",
            )
        return min(length, rule.max_samples)

    def load(self, media: Sequence[EncodedMedia]) -> dict[str, Tensor]:
        """The tensors of one sample's audio, in order; raises MediaError for damaged audio."""
        if not media:
            return {}
        rule = self._rule(media[0].media)
        waves = []
        for item in media:
            if item.sound is None:
                raise MediaError(f"{item.media.name} was not measured", code="media.unsupported")
            waves.append(decode_sound(item.media, item.sound, rate=rule.rate, most=rule.max_samples))
        tensors = rule.process(waves)
        for index, item in enumerate(media):
            if not all(bool(tensor[index].isfinite().all()) for tensor in tensors.values()):
                raise MediaError(
                    f"{item.media.name}: its samples are so large that its features are no finite numbers",
                    code="media.not_finite",
                )
            produced = rule.produced(tensors, index)
            if produced != item.num_tokens:
                raise MediaError(
                    f"{item.media.name}: {item.num_tokens} tokens were predicted from the header, but the processor"
                    f" made features for {produced}",
                    code="media.count_differs",
                )
        return tensors

    def _rule(self, media: Media) -> AudioRule:
        if self.rule is None:
            raise MediaError(
                f"{media.name} is audio, which this encoder ({self.name}) does not take", code="media.unsupported"
            )
        return self.rule
