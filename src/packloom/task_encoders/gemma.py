"""The Gemma families: Gemma 3 and Gemma 4."""

from __future__ import annotations

from packloom.task_encoders import gemma3_images, gemma4_images
from packloom.task_encoders.base import TaskEncoder
from packloom.task_encoders.family import Boundary, Family, Thinking
from packloom.task_encoders.gemma3_images import Gemma3ImageRule
from packloom.task_encoders.gemma4_images import Gemma4ImageRule
from packloom.task_encoders.positions import text_positions

#: Read off transformers 5.24: blocks of image tokens are looked up at positions that restart in every sample.
IMAGE_ATTENTION = "its two-way attention inside images is looked up at positions that restart in each packed sample"


class Gemma3TaskEncoder(TaskEncoder):
    """Gemma 3: the template trims texts and demands alternation; token_type_ids mark image tokens."""

    family = Family(
        name="gemma3",
        boundaries=(Boundary(start="<start_of_turn>model\n", ends=("<end_of_turn>",)),),
        positions=text_positions,
        image_rule=Gemma3ImageRule.from_parts,
        media_tokens=gemma3_images.MEDIA_TOKENS,
        token_types="token_type_ids",
        packing_leak=IMAGE_ATTENTION,
    )


class Gemma4TaskEncoder(TaskEncoder):
    """Gemma 4: a tool call ends its turn with the token that opens the response."""

    family = Family(
        name="gemma4",
        boundaries=(
            Boundary(start="<|turn>model\n", ends=("<turn|>", "<|tool_response>")),
            Boundary(start="<tool_response|>", ends=("<turn|>", "<|tool_response>"), continues=True),
        ),
        positions=text_positions,
        image_rule=Gemma4ImageRule.from_parts,
        media_tokens=(*gemma4_images.MEDIA_TOKENS, "<|video|>"),
        thinking=Thinking(open="<|channel>thought\n", close="<channel|>"),
        prompt_prefixes=("<|channel>thought\n<channel|>",),
        token_types="mm_token_type_ids",
        packing_leak=IMAGE_ATTENTION,
    )
