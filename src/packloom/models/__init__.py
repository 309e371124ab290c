"""A batch goes in; the arguments of a model's forward, its output and the loss function come out."""

from packloom.models.device import to_device
from packloom.models.forward_step import forward_step
from packloom.models.hf import hf_model_inputs
from packloom.models.loss import lm_loss, next_token_targets
from packloom.models.routing import Stage, route

__all__ = [
    "Stage",
    "forward_step",
    "hf_model_inputs",
    "lm_loss",
    "next_token_targets",
    "route",
    "to_device",
]
