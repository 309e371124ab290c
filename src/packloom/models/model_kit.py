"""A model name and the choices of a run go in; a model that is ready to train comes out, its steps in their order.

build → patch → freeze → upcast → checkpoint → compile → parallelise → optimiser. Each step may be left out; one that
comes too late is refused, naming both.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch import nn
from transformers import AutoModelForImageTextToText, PreTrainedConfig, PreTrainedModel

from packloom.errors import ConfigError
from packloom.models.checkpointing import CheckpointReport, apply_gradient_checkpointing, check_recomputation
from packloom.models.components import COMPONENT_MAPS, ComponentMap, assign_components, find_components
from packloom.models.estimate import StepEstimate, estimate_steps
from packloom.models.freeze import FreezeReport, apply_freeze_policy, upcast_trainable
from packloom.models.kit_order import ORDER, take_step

__all__ = [
    "COMPONENT_MAPS",
    "ORDER",
    "CheckpointReport",
    "ComponentMap",
    "FreezeReport",
    "StepEstimate",
    "apply_freeze_policy",
    "apply_gradient_checkpointing",
    "apply_model_compile",
    "apply_model_patches",
    "assign_components",
    "build_model",
    "build_optimiser",
    "check_recomputation",
    "estimate_steps",
    "find_components",
    "parallelise",
    "upcast_trainable",
]

logger = logging.getLogger(__name__)

_Optimiser = TypeVar("_Optimiser", bound=torch.optim.Optimizer)


def build_model(
    source: str | Path | PreTrainedConfig,
    *,
    dtype: str | torch.dtype = "auto",
    attn: str | None = None,
    trust_remote_code: bool = False,
    **options: Any,
) -> PreTrainedModel:
    """The image-text-to-text model of a name or folder, or, with random weights, of a configuration.

    ``attn`` is the attention backend ("sdpa", "flash_attention_2", "flex_attention", ...), by default transformers'
    choice. ``trust_remote_code`` runs code from the model's repository: off unless asked for. ``options`` go to
    ``from_pretrained``.
    """
    chosen = options if attn is None else {**options, "attn_implementation": attn}
    if isinstance(source, PreTrainedConfig):
        kind = {} if dtype == "auto" else {"dtype": dtype}
        model = AutoModelForImageTextToText.from_config(source, trust_remote_code=trust_remote_code, **kind, **chosen)
    else:
        model = AutoModelForImageTextToText.from_pretrained(
            source, dtype=dtype, trust_remote_code=trust_remote_code, **chosen
        )
    take_step(model, "build")
    return model


def apply_model_patches(model: nn.Module, patches: Iterable[Callable[[nn.Module], Any]]) -> nn.Module:
    """The model after each patch in order; a patch gets the model and returns it, or another one."""
    take_step(model, "patch")
    for patch in patches:
        patched = patch(model)
        if not isinstance(patched, nn.Module):
            name = getattr(patch, "__name__", repr(patch))
            raise ConfigError(f"the patch {name} must return the model, got {type(patched).__name__}")
        model = patched
    return model


def apply_model_compile(
    model: nn.Module, *, backend: str | Callable[..., Any] = "inductor", mode: str | None = None, components: Any = None
) -> tuple[str, ...]:
    """Compile the language model in place; the names of the modules compiled.

    The vision tower and the projector stay eager: their shapes change with every image. What is compiled are the
    modules at the language prefixes of the component map, so outputs, parameter names and checkpoint keys are as
    before.
    """
    found = components or find_components(model)
    assign_components(model, found)
    take_step(model, "compile")
    options = {} if mode is None else {"mode": mode}
    for name in found.language:
        model.get_submodule(name).compile(backend=backend, **options)
    return tuple(found.language)


def parallelise(model: nn.Module, wrap: Callable[[nn.Module], Any]) -> nn.Module:
    """``wrap(model)``, e.g. with ``fully_shard`` or DistributedDataParallel, as the step before the optimiser.

    Raises ConfigError if it returns no module.
    """
    take_step(model, "parallelise")
    wrapped = wrap(model)
    if not isinstance(wrapped, nn.Module):
        raise ConfigError(f"wrap must return the model, got {type(wrapped).__name__}")
    return wrapped


def build_optimiser(
    model: nn.Module, kind: Callable[..., _Optimiser], *, no_decay: Sequence[str] = (), **options: Any
) -> _Optimiser:
    """``kind`` over the trained parameters alone, e.g. ``build_optimiser(model, torch.optim.AdamW, lr=1e-5)``.

    Parameters whose names contain one of ``no_decay`` get no weight decay. Raises ConfigError if nothing is trained.
    """
    take_step(model, "optimiser")
    trained = [(name, parameter) for name, parameter in model.named_parameters() if parameter.requires_grad]
    if not trained:
        raise ConfigError("no parameter requires a gradient, so there is nothing to optimise")
    plain = [p for name, p in trained if not any(part in name for part in no_decay)]
    spared = [p for name, p in trained if any(part in name for part in no_decay)]
    groups: list[dict[str, Any]] = [{"params": plain}, {"params": spared, "weight_decay": 0.0}]
    logger.info("optimising %d tensors, %d of them without weight decay", len(trained), len(spared))
    return kind([group for group in groups if group["params"]], **options)
