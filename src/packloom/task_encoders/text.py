"""Text models: any chat template whose turns can be told, and no media."""

from __future__ import annotations

from packloom.task_encoders.base import TaskEncoder
from packloom.task_encoders.family import Family
from packloom.task_encoders.positions import text_positions


class TextTaskEncoder(TaskEncoder):
    """A tokenizer with a chat template; turn boundaries are read off the template."""

    family = Family(
        name="text",
        boundaries=(),
        positions=text_positions,
        content="string",
        prompt_prefixes=("<think>\n\n</think>\n\n", "<think></think>", "<think>\n"),
    )
