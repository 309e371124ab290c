"""Task encoders: raw samples in, tokens, masks and media tensors out; one subclass per model family.

Names are loaded when they are first used: whoever only cooks samples does not wait for transformers.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from packloom.task_encoders.base import TaskEncoder
    from packloom.task_encoders.cookers import Cooker, cook
    from packloom.task_encoders.family import Boundary, Family
    from packloom.task_encoders.registry import register_task_encoder

_HOMES = {
    "Boundary": "family",
    "Cooker": "cookers",
    "Family": "family",
    "TaskEncoder": "base",
    "cook": "cookers",
    "register_task_encoder": "registry",
}

__all__ = ["Boundary", "Cooker", "Family", "TaskEncoder", "cook", "register_task_encoder"]


def __getattr__(name: str) -> object:
    if name not in _HOMES:
        raise AttributeError(f"module 'packloom.task_encoders' has no attribute {name!r}")
    value = getattr(importlib.import_module(f"packloom.task_encoders.{_HOMES[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
