"""packloom: sharded tar datasets of image-text conversations into ready training batches for VLMs."""

from packloom.errors import PackloomError, SampleError
from packloom.task_encoders import TaskEncoder, register_task_encoder

__all__ = [
    "PackloomError",
    "SampleError",
    "TaskEncoder",
    "register_task_encoder",
]
