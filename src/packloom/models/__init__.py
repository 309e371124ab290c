"""A batch goes in; the arguments of a model's forward, its output and the loss function come out."""

from packloom.models.broadcast import BroadcastIterator
from packloom.models.device import to_device
from packloom.models.forward_step import forward_step
from packloom.models.hf import hf_model_inputs
from packloom.models.hf_collate import HFCollate
from packloom.models.loss import lm_loss, next_token_targets, sample_weights, token_loss
from packloom.models.masks import additive_mask, block_causal_mask, flex_block_mask
from packloom.models.megatron import StageInputs, packed_seq_params, stage_inputs
from packloom.models.megatron_step import MegatronStep
from packloom.models.reduction import backward_scale, reduce_count, reduce_report
from packloom.models.routing import Stage, route
from packloom.models.visual import VisualInputs

__all__ = [
    "BroadcastIterator",
    "HFCollate",
    "MegatronStep",
    "Stage",
    "StageInputs",
    "VisualInputs",
    "additive_mask",
    "backward_scale",
    "block_causal_mask",
    "flex_block_mask",
    "forward_step",
    "hf_model_inputs",
    "lm_loss",
    "next_token_targets",
    "packed_seq_params",
    "reduce_count",
    "reduce_report",
    "route",
    "sample_weights",
    "stage_inputs",
    "to_device",
    "token_loss",
]
