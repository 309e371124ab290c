"""The LLaVA families: LLaVA-1.5, LLaVA-NeXT and LLaVA-OneVision."""

from __future__ import annotations

from packloom.task_encoders import anyres_images
from packloom.task_encoders.anyres_images import llava_next_image_rule, llava_onevision_image_rule
from packloom.task_encoders.base import TaskEncoder
from packloom.task_encoders.family import Boundary, Family
from packloom.task_encoders.llava_images import LlavaImageRule
from packloom.task_encoders.onevision_videos import onevision_video_rule
from packloom.task_encoders.positions import text_positions
from packloom.task_encoders.qwen_vl import CHATML


class LlavaTaskEncoder(TaskEncoder):
    """LLaVA-1.5: the turn header is plain text, told from a user's text by its place in the template."""

    family = Family(
        name="llava",
        boundaries=(Boundary(start="ASSISTANT:", ends=("</s>",)),),
        positions=text_positions,
        image_rule=LlavaImageRule.from_parts,
        media_tokens=("<image>",),
    )


class LlavaNextTaskEncoder(TaskEncoder):
    """LLaVA-NeXT with Mistral: plain-text delimiters; the template moves images in front of the text."""

    family = Family(
        name="llava_next",
        boundaries=(Boundary(start=" [/INST]", ends=("</s>",)),),
        positions=text_positions,
        image_rule=llava_next_image_rule,
        media_tokens=("<image>",),
        media_joins=anyres_images.MEDIA_JOINS,
    )


class LlavaOnevisionTaskEncoder(TaskEncoder):
    """LLaVA-OneVision: ChatML turns."""

    family = Family(
        name="llava_onevision",
        boundaries=(CHATML,),
        positions=text_positions,
        image_rule=llava_onevision_image_rule,
        video_rule=onevision_video_rule,
        media_tokens=("<image>", "<video>"),
        media_joins=anyres_images.MEDIA_JOINS,
    )
