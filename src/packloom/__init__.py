"""packloom: sharded tar datasets of image-text conversations into ready training batches for VLMs.

Names are loaded when they are first used: a worker that only reads shards does not wait for torch and transformers.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from packloom.blend import Blend, Leaf
    from packloom.config import DataConfig, SampleConfig, SampleLimits
    from packloom.errors import PackloomError, SampleError
    from packloom.inspect import inspect_sample
    from packloom.loader import Loader, build_loader, build_validation, load_state_dir, merge_states, save_state_dir
    from packloom.models.device import to_device
    from packloom.task_encoders import TaskEncoder, register_task_encoder

_HOMES = {
    "Blend": "packloom.blend",
    "DataConfig": "packloom.config",
    "Leaf": "packloom.blend",
    "Loader": "packloom.loader",
    "PackloomError": "packloom.errors",
    "SampleConfig": "packloom.config",
    "SampleError": "packloom.errors",
    "SampleLimits": "packloom.config",
    "TaskEncoder": "packloom.task_encoders",
    "build_loader": "packloom.loader",
    "build_validation": "packloom.loader",
    "inspect_sample": "packloom.inspect",
    "load_state_dir": "packloom.loader",
    "merge_states": "packloom.loader",
    "register_task_encoder": "packloom.task_encoders",
    "save_state_dir": "packloom.loader",
    "to_device": "packloom.models.device",
}

__all__ = [
    "Blend",
    "DataConfig",
    "Leaf",
    "Loader",
    "PackloomError",
    "SampleConfig",
    "SampleError",
    "SampleLimits",
    "TaskEncoder",
    "build_loader",
    "build_validation",
    "inspect_sample",
    "load_state_dir",
    "merge_states",
    "register_task_encoder",
    "save_state_dir",
    "to_device",
]


def __getattr__(name: str) -> object:
    if name not in _HOMES:
        raise AttributeError(f"module 'packloom' has no attribute {name!r}")
    value = getattr(importlib.import_module(_HOMES[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
