"""The SmolVLM family."""

from __future__ import annotations

from packloom.task_encoders.base import TaskEncoder
from packloom.task_encoders.family import Boundary, Family
from packloom.task_encoders.positions import text_positions
from packloom.task_encoders.smolvlm_images import MEDIA_JOINS, MEDIA_TOKENS, SmolVLMImageRule


class SmolVLMTaskEncoder(TaskEncoder):
    """SmolVLM: the turn header is plain text; the template drops string content, so content is always parts."""

    family = Family(
        name="smolvlm",
        boundaries=(Boundary(start="Assistant:", ends=("<end_of_utterance>",)),),
        positions=text_positions,
        image_rule=SmolVLMImageRule.from_parts,
        media_tokens=MEDIA_TOKENS,
        media_joins=MEDIA_JOINS,
    )
