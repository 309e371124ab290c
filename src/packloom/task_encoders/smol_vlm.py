"""The SmolVLM family."""

from __future__ import annotations

from packloom.task_encoders.base import TaskEncoder
from packloom.task_encoders.family import Boundary, Family
from packloom.task_encoders.positions import text_positions


class SmolVLMTaskEncoder(TaskEncoder):
    """SmolVLM: the turn header is plain text; the template drops string content, so content is always parts."""

    family = Family(
        name="smolvlm",
        boundaries=(Boundary(start="Assistant:", ends=("<end_of_utterance>",)),),
        positions=text_positions,
        media_tokens=("<image>", "<fake_token_around_image>", "<global-img>"),
    )
