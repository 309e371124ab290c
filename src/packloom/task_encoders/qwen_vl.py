"""The Qwen-VL families: Qwen2-VL, Qwen2.5-VL, Qwen3-VL (instruct and thinking) and Qwen3.5."""

from __future__ import annotations

import dataclasses

from packloom.task_encoders.base import TaskEncoder
from packloom.task_encoders.family import Boundary, Family, TemplateEdit
from packloom.task_encoders.grid_images import GridImageRule, with_pixel_bounds
from packloom.task_encoders.positions import mrope_positions
from packloom.task_encoders.processors import ProcessorParts
from packloom.task_encoders.qwen_videos import qwen2_5_video_rule, qwen2_video_rule, qwen3_video_rule

CHATML = Boundary(start="<|im_start|>assistant\n", ends=("<|im_end|>",))
IMAGE_TOKEN = "<|image_pad|>"

#: Grounding marks that the models' own training data write in ordinary answers and questions.
GROUNDING_TOKENS = frozenset(
    f"<|{name}_{edge}|>" for name in ("object_ref", "box", "quad") for edge in ("start", "end")
)


def qwen_image_rule(parts: ProcessorParts) -> GridImageRule:
    """The image geometry of any Qwen-VL processor."""
    return GridImageRule.from_parts(parts, token=IMAGE_TOKEN)


QWEN2_VL = Family(
    name="qwen2_vl",
    boundaries=(CHATML,),
    positions=mrope_positions,
    image_rule=qwen_image_rule,
    video_rule=qwen2_video_rule,
    pixel_bounds=with_pixel_bounds,
    media_tokens=("<|vision_start|>", IMAGE_TOKEN, "<|video_pad|>", "<|vision_pad|>", "<|vision_end|>"),
    payload_tokens=GROUNDING_TOKENS,
    token_types="mm_token_type_ids",
)

#: Thoughts of turns before the last question are left out; with this, those that are there are written.
ALL_THOUGHTS = TemplateEdit(
    old="if loop.index0 > ns.last_query_index %}", new="if loop.index0 > ns.last_query_index or reasoning_content %}"
)

#: The thinking template writes an empty or open thought behind the header; inference supplies it too.
QWEN3_VL = dataclasses.replace(
    QWEN2_VL,
    name="qwen3_vl",
    video_rule=qwen3_video_rule,
    prompt_prefixes=("<think>\n\n</think>\n\n", "<think>\n"),
    training_edits=(ALL_THOUGHTS,),
)


class Qwen2VLTaskEncoder(TaskEncoder):
    """Qwen2-VL: a default system prompt is added by the template; tool calls are dropped by it, so refused."""

    family = QWEN2_VL


class Qwen2_5VLTaskEncoder(TaskEncoder):  # noqa: N801 - the model's own spelling
    """Qwen2.5-VL: as Qwen2-VL for images; of videos, positions along time follow the seconds."""

    family = dataclasses.replace(QWEN2_VL, name="qwen2_5_vl", video_rule=qwen2_5_video_rule)


class Qwen3VLTaskEncoder(TaskEncoder):
    """Qwen3-VL: 16-pixel patches, no default system prompt, tool calls rendered inside the assistant turn."""

    family = QWEN3_VL


class Qwen3_5TaskEncoder(TaskEncoder):  # noqa: N801 - the model's own spelling
    """Qwen3.5: texts are trimmed; the last turn always has a thought, empty ones belong to the prompt."""

    family = dataclasses.replace(
        QWEN3_VL,
        name="qwen3_5",
        packing_leak="its linear-attention layers carry their state from one packed sample into the next",
    )
