"""Text models: any chat template whose turns can be told, and no media."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterator, Mapping
from typing import Any

from packloom.task_encoders.base import TaskEncoder
from packloom.task_encoders.family import Family
from packloom.task_encoders.positions import text_positions
from packloom.task_encoders.processors import ProcessorParts

#: How a config.json spells layers that carry a state along the sequence.
_RECURRENT = re.compile(r"mamba|ssm_|linear_attention|linear_num_|hybrid_override_pattern|recurrent|rwkv|short_conv")


class TextTaskEncoder(TaskEncoder):
    """Text: any tokenizer with a chat template; turn boundaries are read off it."""

    family = Family(
        name="text",
        boundaries=(),
        positions=text_positions,
        content="string",
        prompt_prefixes=("<think>\n\n</think>\n\n", "<think></think>", "<think>\n"),
    )

    @classmethod
    def settle(cls, parts: ProcessorParts) -> tuple[ProcessorParts, Family]:
        """Models whose config.json names recurrent layers are not packed."""
        parts, family = super().settle(parts)
        found = next((word for word in _words(parts.config) if _RECURRENT.search(word)), None)
        if found is None:
            return parts, family
        leak = f"its config.json names {found}: recurrent layers carry their state from one packed sample into the next"
        return parts, dataclasses.replace(family, packing_leak=leak)


def _words(data: Any) -> Iterator[str]:
    """Every key and every text in plain data."""
    if isinstance(data, str):
        yield data
    elif isinstance(data, Mapping):
        for key, value in data.items():
            yield str(key)
            yield from _words(value)
    elif isinstance(data, (list, tuple)):
        for value in data:
            yield from _words(value)
