"""The GLM-V families: GLM-4.1V / 4.5V and GLM-4.6V."""

from __future__ import annotations

import dataclasses

from packloom.task_encoders.base import TaskEncoder
from packloom.task_encoders.family import Boundary, Family, TemplateEdit
from packloom.task_encoders.glm_images import MEDIA_TOKENS, glm_image_rule, glm_pixel_bounds
from packloom.task_encoders.glm_videos import glm4v_video_rule, glm46v_video_rule
from packloom.task_encoders.positions import mrope_positions

#: No token ends a GLM turn: the model stops by writing the mark of the next role, or the end of text.
GLM_TURN = Boundary(start="<|assistant|>\n", ends=("<|user|>", "<|observation|>", "<|system|>", "<|endoftext|>"))
BOXES = frozenset({"<|begin_of_box|>", "<|end_of_box|>"})
THINK_MARKS = frozenset({"<think>", "</think>"})

GLM4V = Family(
    name="glm4v",
    boundaries=(GLM_TURN,),
    final_end="<|endoftext|>",
    positions=mrope_positions,
    image_rule=glm_image_rule,
    video_rule=glm4v_video_rule,
    pixel_bounds=glm_pixel_bounds,
    media_tokens=MEDIA_TOKENS,
    payload_tokens=BOXES | THINK_MARKS,  # its template takes reasoning only inline
    content="string_without_media",
    token_types="mm_token_type_ids",
)


class Glm4vTaskEncoder(TaskEncoder):
    """GLM-4.1V: the template prints a list where an answer is not a string, so answers are rendered as strings."""

    family = GLM4V


class Glm46vTaskEncoder(TaskEncoder):
    """GLM-4.5V and GLM-4.6V: an empty thought is written into every turn that has no reasoning."""

    family = dataclasses.replace(
        GLM4V,
        name="glm46v",
        video_rule=glm46v_video_rule,
        prompt_prefixes=("<think></think>\n", "<think></think>"),
        payload_tokens=BOXES,
        training_edits=(
            TemplateEdit(
                old="if loop.index0 > ns.last_user_index and reasoning_content -%}", new="if reasoning_content -%}"
            ),
        ),
    )
