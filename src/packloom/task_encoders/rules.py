"""A family's facts, processor parts and settings in; the rules of its images, videos and audio, out."""

from __future__ import annotations

from packloom.config import SampleConfig
from packloom.config_audio import AudioConfig
from packloom.config_video import VideoConfig
from packloom.errors import CapabilityError, ConfigError, ProcessorError
from packloom.task_encoders.family import AudioRule, Family, ImageRule, VideoRule
from packloom.task_encoders.processors import ProcessorParts
from packloom.task_encoders.video_choice import choose_videos


def with_bounds(parts: ProcessorParts, family: Family, config: SampleConfig) -> ProcessorParts:
    """The parts with the settings' pixel bounds; raises ConfigError where the family has none."""
    if config.min_pixels is None and config.max_pixels is None:
        return parts
    if family.pixel_bounds is None:
        raise ConfigError(f"images of the family {family.name} have a fixed size: min_pixels and max_pixels do nothing")
    return family.pixel_bounds(parts, config.min_pixels, config.max_pixels)


def image_rule_of(parts: ProcessorParts, family: Family) -> ImageRule | None:
    """None where images cannot be taken; raises ProcessorError for an image processor of another family."""
    if parts.image_processor is None or family.image_rule is None:
        return None
    try:
        return family.image_rule(parts)
    except (AttributeError, LookupError, TypeError) as error:
        raise ProcessorError(
            f"{parts.name}: its image processor, {type(parts.image_processor).__name__}, is not of the family"
            f" {family.name} ({error}): pass the right model_type"
        ) from error


def video_rule_of(parts: ProcessorParts, family: Family, config: SampleConfig) -> tuple[VideoRule | None, str]:
    """None and the reason where videos cannot be taken; an error only where the settings ask for them."""
    refusal = f"encoders of the family {family.name} take no videos yet"
    if parts.image_processor is not None and family.video_rule is not None:
        if parts.video_settings is not None:
            try:
                return choose_videos(parts, family.video_rule(parts, config.video), config), ""
            except CapabilityError as error:
                refusal = str(error)
        else:
            refusal = "the processor has no settings of a video processor"
    if config.video != VideoConfig():
        raise CapabilityError(f"{parts.name}: video settings were given, but {refusal}")
    return None, refusal


def audio_rule_of(parts: ProcessorParts, family: Family, config: SampleConfig) -> AudioRule | None:
    """None where audio cannot be taken; an error only where the settings ask for it."""
    if family.audio_rule is not None and parts.audio_settings is not None:
        return family.audio_rule(parts)
    if config.audio != AudioConfig():
        raise CapabilityError(f"{parts.name}: audio settings were given, but {_no_audio(family)}")
    return None


def _no_audio(family: Family) -> str:
    if family.audio_rule is None:
        return f"this encoder of the family {family.name} takes no audio"
    return "the processor has no settings of a feature extractor"
