"""The Qwen-VL families: Qwen2-VL, Qwen2.5-VL and Qwen3-VL."""

from __future__ import annotations

from packloom.task_encoders.base import TaskEncoder
from packloom.task_encoders.family import Boundary, Family
from packloom.task_encoders.grid_images import GridImageRule, with_pixel_bounds
from packloom.task_encoders.positions import mrope_positions
from packloom.task_encoders.processors import ProcessorParts

CHATML = Boundary(start="<|im_start|>assistant\n", ends=("<|im_end|>",))
IMAGE_TOKEN = "<|image_pad|>"
MEDIA_TOKENS = ("<|vision_start|>", IMAGE_TOKEN, "<|video_pad|>", "<|vision_pad|>", "<|vision_end|>")

#: Grounding marks that the models' own training data write in ordinary answers and questions.
GROUNDING_TOKENS = frozenset(
    f"<|{name}_{edge}|>" for name in ("object_ref", "box", "quad") for edge in ("start", "end")
)


def qwen_image_rule(parts: ProcessorParts) -> GridImageRule:
    """The image geometry of any Qwen-VL processor."""
    return GridImageRule.from_parts(parts, token=IMAGE_TOKEN)


def _family(name: str) -> Family:
    return Family(
        name=name,
        boundaries=(CHATML,),
        positions=mrope_positions,
        image_rule=qwen_image_rule,
        pixel_bounds=with_pixel_bounds,
        media_tokens=MEDIA_TOKENS,
        payload_tokens=GROUNDING_TOKENS,
        token_types=True,
    )


class Qwen2VLTaskEncoder(TaskEncoder):
    """Qwen2-VL: a default system prompt is added by the template; tool calls are dropped by it, so refused."""

    family = _family("qwen2_vl")


class Qwen2_5VLTaskEncoder(TaskEncoder):  # noqa: N801 - the model's own spelling
    """Qwen2.5-VL: as Qwen2-VL for images."""

    family = _family("qwen2_5_vl")


class Qwen3VLTaskEncoder(TaskEncoder):
    """Qwen3-VL: 16-pixel patches, no default system prompt, tool calls rendered inside the assistant turn."""

    family = _family("qwen3_vl")
