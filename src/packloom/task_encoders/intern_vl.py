"""The InternVL families: InternVL3 and InternVL3.5."""

from __future__ import annotations

from packloom.task_encoders.base import TaskEncoder
from packloom.task_encoders.family import Family
from packloom.task_encoders.internvl_images import MEDIA_TOKENS, InternVLImageRule
from packloom.task_encoders.internvl_videos import internvl_video_rule
from packloom.task_encoders.positions import text_positions
from packloom.task_encoders.qwen_vl import CHATML

GROUNDING_TOKENS = frozenset({"<quad>", "</quad>", "<ref>", "</ref>", "<box>", "</box>"})


class InternVLTaskEncoder(TaskEncoder):
    """InternVL: ChatML turns; no default system prompt in the Hugging Face template."""

    family = Family(
        name="internvl",
        boundaries=(CHATML,),
        positions=text_positions,
        image_rule=InternVLImageRule.from_parts,
        video_rule=internvl_video_rule,
        media_tokens=(*MEDIA_TOKENS, "<video>"),
        payload_tokens=GROUNDING_TOKENS,
        content="string_without_media",  # OpenGVLab's own template takes a system text as a string only
    )
