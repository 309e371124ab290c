"""The Kimi-VL families: Kimi-VL and Kimi-K2.5."""

from __future__ import annotations

from packloom.task_encoders.base import TaskEncoder
from packloom.task_encoders.family import Boundary, Family
from packloom.task_encoders.kimi_images import MEDIA_TOKENS, KimiImageRule
from packloom.task_encoders.positions import text_positions


class KimiK25TaskEncoder(TaskEncoder):
    """Kimi-K2.5: a thought, often empty, is written into every assistant turn."""

    family = Family(
        name="kimi_k25",
        boundaries=(Boundary(start="<|im_assistant|>assistant<|im_middle|>", ends=("<|im_end|>",)),),
        positions=text_positions,
        image_rule=KimiImageRule.from_parts,
        media_tokens=(*MEDIA_TOKENS, "<|kimi_k25_video_placeholder|>"),
        prompt_prefixes=("<think></think>", "<think>"),
    )
