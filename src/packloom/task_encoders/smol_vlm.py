"""The SmolVLM family."""

from __future__ import annotations

from dataclasses import replace

from packloom.task_encoders.base import TaskEncoder
from packloom.task_encoders.family import Boundary, Family
from packloom.task_encoders.positions import text_positions
from packloom.task_encoders.processors import ProcessorParts
from packloom.task_encoders.smolvlm_images import MEDIA_JOINS, MEDIA_TOKENS, SmolVLMImageRule
from packloom.task_encoders.smolvlm_videos import smolvlm_video_rule, with_videos


class SmolVLMTaskEncoder(TaskEncoder):
    """SmolVLM: the turn header is plain text; the template drops string content, so content is always parts."""

    family = Family(
        name="smolvlm",
        boundaries=(Boundary(start="Assistant:", ends=("<end_of_utterance>",)),),
        positions=text_positions,
        image_rule=SmolVLMImageRule.from_parts,
        video_rule=smolvlm_video_rule,
        media_tokens=MEDIA_TOKENS,
        media_joins=MEDIA_JOINS,
    )

    @classmethod
    def settle(cls, parts: ProcessorParts) -> tuple[ProcessorParts, Family]:
        """The released chat template leaves videos out: here it writes them."""
        parts, family = super().settle(parts)
        return replace(parts, chat_template=with_videos(parts.chat_template)), family
