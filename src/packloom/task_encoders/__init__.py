"""Task encoders: raw samples in, tokens, masks and media tensors out; one subclass per model family."""

from packloom.task_encoders.base import TaskEncoder
from packloom.task_encoders.cookers import Cooker, cook
from packloom.task_encoders.family import Boundary, Family
from packloom.task_encoders.registry import register_task_encoder

__all__ = ["Boundary", "Cooker", "Family", "TaskEncoder", "cook", "register_task_encoder"]
