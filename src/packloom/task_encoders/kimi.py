"""The Kimi-VL families: Kimi-VL and Kimi-K2.5."""

from __future__ import annotations

import dataclasses

from packloom.errors import CapabilityError
from packloom.task_encoders import kimi_images, kimi_vl_images
from packloom.task_encoders.base import TaskEncoder
from packloom.task_encoders.family import Boundary, Family, TemplateEdit
from packloom.task_encoders.kimi_images import KimiImageRule
from packloom.task_encoders.kimi_vl_images import FlatImages, KimiVLImageRule
from packloom.task_encoders.positions import text_positions
from packloom.task_encoders.processors import ProcessorParts

KIMI_TURN = Boundary(start="<|im_assistant|>assistant<|im_middle|>", ends=("<|im_end|>",))

#: The template looks for the last answer to tell history, whose thoughts it leaves out: here it finds none.
WITHOUT_HISTORY = TemplateEdit(old="for idx in range(messages|length-1, -1, -1)", new="for idx in range(-1, -1, -1)")


class KimiK25TaskEncoder(TaskEncoder):
    """Kimi-K2.5: a thought, often empty, is written into every assistant turn; that of answers is dropped."""

    family = Family(
        name="kimi_k25",
        boundaries=(KIMI_TURN,),
        positions=text_positions,
        image_rule=KimiImageRule.from_parts,
        media_tokens=(*kimi_images.MEDIA_TOKENS, "<|kimi_k25_video_placeholder|>"),
        prompt_prefixes=("<think></think>", "<think>"),
        training_edits=(WITHOUT_HISTORY,),
    )


class KimiVLTaskEncoder(TaskEncoder):
    """Kimi-VL: images need the processor that comes with the checkpoint; a default system prompt is added."""

    family = Family(
        name="kimi_vl",
        boundaries=(KIMI_TURN,),
        positions=text_positions,
        image_rule=KimiVLImageRule.from_parts,
        media_tokens=kimi_vl_images.MEDIA_TOKENS,
    )

    @classmethod
    def settle(cls, parts: ProcessorParts) -> tuple[ProcessorParts, Family]:
        """Its image processor takes images in one list only."""
        parts, family = super().settle(parts)
        images = parts.image_processor
        if images is None or isinstance(images, FlatImages):
            return parts, family
        if type(images).__name__ != "KimiVLImageProcessor":
            raise CapabilityError(
                f"{parts.name}: transformers has no image processor for Kimi-VL, and {type(images).__name__} is not the"
                " one that comes with the checkpoint: load the processor with trust_remote_code=True and pass it to"
                " TaskEncoder.from_processor, or pass its tokenizer for text rows"
            )
        return dataclasses.replace(parts, image_processor=FlatImages(inner=images)), family
