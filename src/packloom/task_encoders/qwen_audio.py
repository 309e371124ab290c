"""The Qwen families that hear: Qwen2-Audio, and Qwen2.5-Omni (its thinker: text, images and audio in, text out)."""

from __future__ import annotations

from packloom.task_encoders.base import TaskEncoder
from packloom.task_encoders.family import Family
from packloom.task_encoders.grid_images import GridImageRule, with_pixel_bounds
from packloom.task_encoders.positions import mrope_positions, text_positions
from packloom.task_encoders.processors import ProcessorParts
from packloom.task_encoders.qwen_vl import CHATML
from packloom.task_encoders.whisper_audios import WhisperAudioRule, whisper_extractor

AUDIO_TOKEN, IMAGE_TOKEN = "<|AUDIO|>", "<|IMAGE|>"
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
        audio_rule=omni_audio_rule,
        pixel_bounds=with_pixel_bounds,
        media_tokens=(*_AUDIO_MARKS, "<|vision_bos|>", IMAGE_TOKEN, "<|VIDEO|>", "<|vision_eos|>"),
    )
