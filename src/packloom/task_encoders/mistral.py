"""The Mistral vision families: Pixtral, Mistral-Small-3.x and Ministral 3."""

from __future__ import annotations

import dataclasses

from packloom.task_encoders.base import TaskEncoder
from packloom.task_encoders.family import Boundary, Family, Thinking
from packloom.task_encoders.pixtral_images import MEDIA_JOINS, MEDIA_TOKENS, PixtralImageRule
from packloom.task_encoders.positions import text_positions

MISTRAL3 = Family(
    name="mistral3",
    # one delimiter ends the user's turn and starts the assistant's; a tool result does the same
    boundaries=(
        Boundary(start="[/INST]", ends=("</s>",)),
        Boundary(start="[/TOOL_RESULTS]", ends=("</s>",)),
    ),
    positions=text_positions,
    image_rule=PixtralImageRule.from_parts,
    media_tokens=MEDIA_TOKENS,
    media_joins=MEDIA_JOINS,
    content="string_without_media",  # Ministral prints the list where a tool result is not a string
    thinking=Thinking(open="[THINK]", close="[/THINK]"),
)


class MistralTaskEncoder(TaskEncoder):
    """Mistral-Small-3.x and Ministral 3: a default system prompt is added by the template, some with today's date."""

    family = MISTRAL3


class PixtralTaskEncoder(TaskEncoder):
    """Pixtral: the system text stands in the last user turn, as in the prompts that its template writes."""

    family = dataclasses.replace(MISTRAL3, name="pixtral", system_in_last_user=True)
