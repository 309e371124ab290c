"""The Qwen families that hear: Qwen2-Audio, and Qwen2.5-Omni (its thinker, which sees too, and writes text)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from packloom.config_video import VideoConfig
from packloom.task_encoders.base import TaskEncoder
from packloom.task_encoders.family import Family
from packloom.task_encoders.grid_images import GridImageRule, with_pixel_bounds
from packloom.task_encoders.grid_videos import GridVideoRule
from packloom.task_encoders.positions import mrope_positions, text_positions
from packloom.task_encoders.processors import ProcessorParts
from packloom.task_encoders.qwen_videos import qwen2_video_rule
from packloom.task_encoders.qwen_vl import CHATML
from packloom.task_encoders.whisper_audios import WhisperAudioRule, whisper_extractor

AUDIO_TOKEN, IMAGE_TOKEN, VIDEO_TOKEN = "<|AUDIO|>", "<|IMAGE|>", "<|VIDEO|>"
_AUDIO_MARKS = ("<|audio_bos|>", AUDIO_TOKEN, "<|audio_eos|>")


def qwen2_audio_rule(parts: ProcessorParts) -> WhisperAudioRule:
    """Windows of 30 seconds. A batch whose every audio is one token would take the model's old path, so none is."""
    extractor = whisper_extractor(parts)
    return WhisperAudioRule(
        placeholder=AUDIO_TOKEN, token=AUDIO_TOKEN, extractor=extractor, hears_padding=True, least_tokens=2
    )


def omni_audio_rule(parts: ProcessorParts) -> WhisperAudioRule:
    """Windows of 300 seconds, of which the model reads what an audio fills."""
    extractor = whisper_extractor(parts)
    return WhisperAudioRule(placeholder=AUDIO_TOKEN, token=AUDIO_TOKEN, extractor=extractor, hears_padding=False)


def omni_image_rule(parts: ProcessorParts) -> GridImageRule:
    """As Qwen2.5-VL's, under another token."""
    return GridImageRule.from_parts(parts, token=IMAGE_TOKEN)


def omni_video_rule(parts: ProcessorParts, config: VideoConfig) -> GridVideoRule:
    """As Qwen2.5-VL's, under another token, at 25 positions a second; without the sound of the video.

    Source of the size: what ``Qwen2_5OmniProcessor`` passes to its video processor on every call, whatever that has.
    """
    size = {"shortest_edge": 128 * 28 * 28, "longest_edge": 768 * 28 * 28}
    settings = {**(parts.video_settings or {}), "size": size, "min_pixels": None, "max_pixels": None}
    thinker = parts.config.get("thinker_config", parts.config)
    rate = thinker.get("position_id_per_seconds", 25) if isinstance(thinker, Mapping) else 25
    return replace(
        qwen2_video_rule(replace(parts, video_settings=settings), config),
        placeholder=VIDEO_TOKEN,
        token=VIDEO_TOKEN,
        seconds_key="video_second_per_grid",
        tokens_per_second=float(rate),
        seconds_first=True,
        reference_positions=True,
    )


class Qwen2AudioTaskEncoder(TaskEncoder):
    """Qwen2-Audio: the template numbers the audios of a conversation, "Audio 1: ", ahead of each."""

    family = Family(
        name="qwen2_audio",
        boundaries=(CHATML,),
        positions=text_positions,
        audio_rule=qwen2_audio_rule,
        media_tokens=_AUDIO_MARKS,
        media_label=r"Audio \d+: ",
    )


class Qwen2_5OmniTaskEncoder(TaskEncoder):  # noqa: N801 - the model's own spelling
    """Qwen2.5-Omni: audio advances all three axes of mRoPE by one for each token (40 ms), as text does."""

    family = Family(
        name="qwen2_5_omni",
        boundaries=(CHATML,),
        positions=mrope_positions,
        image_rule=omni_image_rule,
        video_rule=omni_video_rule,
        audio_rule=omni_audio_rule,
        pixel_bounds=with_pixel_bounds,
        media_tokens=(*_AUDIO_MARKS, "<|vision_bos|>", IMAGE_TOKEN, VIDEO_TOKEN, "<|vision_eos|>"),
    )
