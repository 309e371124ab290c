"""The Mistral vision families: Pixtral, Mistral-Small-3.x and Ministral 3."""

from __future__ import annotations

from packloom.task_encoders.base import TaskEncoder
from packloom.task_encoders.family import Boundary, Family, Thinking
from packloom.task_encoders.pixtral_images import MEDIA_TOKENS, PixtralImageRule
from packloom.task_encoders.positions import text_positions


class MistralTaskEncoder(TaskEncoder):
    """One delimiter ends the user's turn and starts the assistant's; a tool result does the same."""

    family = Family(
        name="mistral3",
        boundaries=(
            Boundary(start="[/INST]", ends=("</s>",)),
            Boundary(start="[/TOOL_RESULTS]", ends=("</s>",)),
        ),
        positions=text_positions,
        image_rule=PixtralImageRule.from_parts,
        media_tokens=MEDIA_TOKENS,
        thinking=Thinking(open="[THINK]", close="[/THINK]"),
    )
