"""The Nemotron vision families: Nemotron-Nano-VL v2, and Nemotron-3-Nano-Omni."""

from __future__ import annotations

from packloom.errors import CapabilityError
from packloom.task_encoders.base import TaskEncoder
from packloom.task_encoders.family import Boundary, Family, ImageRule, TemplateEdit, Thinking
from packloom.task_encoders.nemotron_images import MEDIA_TOKENS, NemotronOmniImageRule
from packloom.task_encoders.parakeet_audios import AUDIO_TOKENS, ParakeetAudioRule
from packloom.task_encoders.parakeet_audios import MEDIA_JOINS as AUDIO_JOINS
from packloom.task_encoders.positions import text_positions
from packloom.task_encoders.processors import ProcessorParts
from packloom.task_encoders.qwen_vl import CHATML

_LEAK = "its Mamba layers carry their state from one packed sample into the next"


def no_image_rule(parts: ProcessorParts) -> ImageRule:
    """Nemotron-Nano-VL v2 cuts its tiles in code that comes with the checkpoint: raises CapabilityError."""
    raise CapabilityError(
        f"{parts.name}: transformers has no image processor for Nemotron-Nano-VL v2 (the checkpoint brings its own"
        " code, which packloom does not run): pass its tokenizer to TaskEncoder.from_processor for text rows"
    )


class NemotronVL2TaskEncoder(TaskEncoder):
    """Nemotron-Nano-VL v2: text rows only; ``/think`` and ``/no_think`` in a text open or close the last thought.

    The last answer stands behind that thought, as in a prompt.
    """

    family = Family(
        name="nemotron_vl_v2",
        boundaries=(Boundary(start="<SPECIAL_11>Assistant\n", ends=("<SPECIAL_12>",)),),
        positions=text_positions,
        image_rule=no_image_rule,
        prompt_prefixes=("<think></think>", "<think>\n"),
        content="string_without_media",
        packing_leak=_LEAK,
        switches=("/think", "/no_think"),
    )


class NemotronOmniTaskEncoder(TaskEncoder):
    """Nemotron-3-Nano-Omni: text, images and audio; a thought, often empty, is written into every assistant turn."""

    family = Family(
        name="nemotron_omni",
        boundaries=(CHATML,),
        positions=text_positions,
        image_rule=NemotronOmniImageRule.from_parts,
        audio_rule=ParakeetAudioRule.from_parts,
        media_tokens=(*MEDIA_TOKENS, *AUDIO_TOKENS),
        media_joins={"image_grid_hw": "concat", **AUDIO_JOINS},
        thinking=Thinking(open="<think>", close="</think>"),
        prompt_prefixes=("<think></think>", "<think></think>\n", "<think>\n"),  # the second where a thought was dropped
        content="string_without_media",
        packing_leak=_LEAK,
        training_edits=(
            TemplateEdit(
                old="truncate_history_thinking if truncate_history_thinking is defined else True",
                new="truncate_history_thinking if truncate_history_thinking is defined else False",
            ),
        ),
    )
