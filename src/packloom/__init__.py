"""packloom: sharded tar datasets of image-text conversations into ready training batches for VLMs."""

from packloom.config import DataConfig, SampleLimits
from packloom.errors import PackloomError, SampleError
from packloom.inspect import inspect_sample
from packloom.loader import Loader, build_loader
from packloom.models.device import to_device
from packloom.task_encoders import TaskEncoder, register_task_encoder

__all__ = [
    "DataConfig",
    "Loader",
    "PackloomError",
    "SampleError",
    "SampleLimits",
    "TaskEncoder",
    "build_loader",
    "inspect_sample",
    "register_task_encoder",
    "to_device",
]
