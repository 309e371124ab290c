"""The Gemma families: Gemma 3 and Gemma 4."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

from packloom.task_encoders import gemma3_images, gemma4_images
from packloom.task_encoders.base import TaskEncoder
from packloom.task_encoders.family import Boundary, Family, TemplateEdit, Thinking
from packloom.task_encoders.gemma3_images import Gemma3ImageRule
from packloom.task_encoders.gemma4_audios import MEDIA_JOINS, Gemma4AudioRule
from packloom.task_encoders.gemma4_images import Gemma4ImageRule
from packloom.task_encoders.positions import text_positions
from packloom.task_encoders.processors import ProcessorParts

#: Read off transformers 5.24: blocks of image tokens are looked up at positions that restart in every sample.
IMAGE_ATTENTION = "its two-way attention inside images is looked up at positions that restart in each packed sample"


class _GemmaTaskEncoder(TaskEncoder):
    @classmethod
    def settle(cls, parts: ProcessorParts) -> tuple[ProcessorParts, Family]:
        """Rows without images have nothing that looks both ways."""
        parts, family = super().settle(parts)
        return parts, family if parts.image_processor else dataclasses.replace(family, packing_leak="")


class Gemma3TaskEncoder(_GemmaTaskEncoder):
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


#: Of Gemma 4 there are models with and without it, and only config.json says which.
UNKNOWN_ATTENTION = (
    "nothing says whether this model attends both ways inside images, which packed samples would mix: load it by"
    " TaskEncoder.from_pretrained, from a folder with its config.json"
)


class Gemma4TaskEncoder(_GemmaTaskEncoder):
    """Gemma 4: text and images, small models audio too; a tool call ends its turn with what opens the response."""

    family = Family(
        name="gemma4",
        boundaries=(
            Boundary(start="<|turn>model\n", ends=("<turn|>", "<|tool_response>")),
            Boundary(start="<tool_response|>", ends=("<turn|>", "<|tool_response>"), continues=True),
        ),
        positions=text_positions,
        image_rule=Gemma4ImageRule.from_parts,
        audio_rule=Gemma4AudioRule.from_parts,
        media_joins=MEDIA_JOINS,
        media_tokens=(*gemma4_images.MEDIA_TOKENS, "<|video|>"),
        thinking=Thinking(open="<|channel>thought\n", close="<channel|>"),
        prompt_prefixes=("<|channel>thought\n<channel|>",),
        token_types="mm_token_type_ids",
        packing_leak=UNKNOWN_ATTENTION,
        training_edits=(TemplateEdit(old="if thinking_text and thinking_gate", new="if thinking_text"),),
    )

    @classmethod
    def settle(cls, parts: ProcessorParts) -> tuple[ProcessorParts, Family]:
        """config.json says whether there is an audio tower, and whether images are read causally, so may be packed."""
        parts, family = super().settle(parts)
        text = parts.config.get("text_config")
        if not isinstance(text, Mapping):
            return parts, family
        if parts.config.get("audio_config") is None:
            family = dataclasses.replace(family, audio_rule=None)
        default = "vision" if parts.model_type == "gemma4_unified" else None  # of transformers' configurations
        leaks = text.get("use_bidirectional_attention", default) is not None
        return parts, dataclasses.replace(family, packing_leak=IMAGE_ATTENTION if leaks and family.packing_leak else "")
