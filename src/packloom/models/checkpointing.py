"""A model and what to recompute go in; its activations are recomputed in backward, and what does so is named."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal, get_args

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint
from transformers import PreTrainedConfig, PreTrainedModel
from transformers.modeling_layers import GradientCheckpointingLayer

from packloom.errors import CapabilityError, ConfigError
from packloom.models.kit_order import take_step

CheckpointMode = Literal["hf", "custom", "hf_with_custom"]


class Recompute:
    """A module's forward that keeps its inputs alone and runs again in backward; the module keeps all its names."""

    def __init__(self, module: nn.Module) -> None:
        self._module, self._forward = module, module.forward
        self.runs = 0  # forwards, those of backward included

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if not (self._module.training and torch.is_grad_enabled()):
            return self._forward(*args, **kwargs)
        # the non-reentrant form needs no input that requires grad, so it works behind frozen embeddings
        return checkpoint(self._run, *args, use_reentrant=False, preserve_rng_state=True, **kwargs)

    def _run(self, *args: Any, **kwargs: Any) -> Any:
        self.runs += 1
        return self._forward(*args, **kwargs)


@dataclass(frozen=True, kw_only=True)
class CheckpointReport:
    """Names of the modules whose activations are recomputed: by Hugging Face's own layers, and by targets."""

    hf: tuple[str, ...] = ()
    custom: tuple[str, ...] = ()


def apply_gradient_checkpointing(
    model: nn.Module, *, mode: CheckpointMode = "hf", targets: Sequence[str] = ()
) -> CheckpointReport:
    """Recompute activations in backward instead of keeping them.

    ``"hf"`` turns on the layers that the model's class prepares for it, ``"custom"`` the modules that ``targets`` name
    as ``"ParentClass:child"`` (each element, where the child is a list), ``"hf_with_custom"`` both. The random state is
    restored for the second run, so dropout drops the same. Caches are turned off wherever a configuration of the model
    asks for one. Check the effect with ``check_recomputation``.

    Raises ConfigError for a target that matches nothing or lies within, or around, a layer that is recomputed already,
    and CapabilityError for a model without layers of Hugging Face's kind under ``"hf"``.
    """
    if mode not in get_args(CheckpointMode):
        raise ConfigError(f"mode must be one of {', '.join(get_args(CheckpointMode))}, got {mode!r}")
    if (mode == "hf") == bool(targets):
        raise ConfigError(f"mode {mode!r} goes {'without' if mode == 'hf' else 'with'} targets, got {list(targets)}")
    found = [item for target in targets for item in _find(model, target)]
    take_step(model, "checkpoint")
    hf = _enable_hf(model) if mode != "custom" else ()
    _check_apart(model, hf, [name for name, _ in found])
    for _, module in found:
        module.forward = Recompute(module)
    turn_caches_off(model)
    return CheckpointReport(hf=hf, custom=tuple(name for name, _ in found))


def check_recomputation(model: nn.Module, run: Callable[[], Tensor]) -> dict[str, int]:
    """Run forward and backward once; how often each checkpointed module ran, by name.

    ``run()`` returns a loss. Modules without a gradient to pass on (of a frozen tower) have nothing to recompute, and
    are left out. Raises CapabilityError for any other that did not run twice as often as it was called: a model that
    has the method but whose loop over layers does not use it. Gradients of the run stay: clear them.
    """
    counts: dict[str, int] = {}
    needed: set[str] = set()
    hooks = []
    for name, module in _checkpointed(model):
        counts[name] = 0
        # A leaf, since a hook on the layer itself may lie outside of what is recomputed.
        leaf = next(item for item in module.modules() if not any(item.children()))
        if leaf is not module:
            hooks.append(leaf.register_forward_pre_hook(partial(_count, counts, name)))
        hooks.append(module.register_forward_hook(partial(_note_need, needed, name)))
    leaves = {name: module.forward for name, module in _checkpointed(model) if not any(module.children())}
    before = {name: forward.runs for name, forward in leaves.items() if isinstance(forward, Recompute)}

    def runs() -> dict[str, int]:
        own = {name: forward.runs - before[name] for name, forward in leaves.items() if isinstance(forward, Recompute)}
        return counts | own

    try:
        loss = run()
        called = runs()
        torch.autograd.backward(loss)
    finally:
        for hook in hooks:
            hook.remove()
    total = {name: number for name, number in runs().items() if name in needed}
    idle = [name for name, number in total.items() if number != 2 * called[name]]
    if idle or not total:
        raise CapabilityError(
            f"activations are not recomputed in {', '.join(idle[:5]) or 'any module'}: the model must be in training"
            " mode, and its own loop must call these modules and pass a gradient through them"
        )
    return total


def _checkpointed(model: nn.Module) -> list[tuple[str, nn.Module]]:
    return [
        (name, module)
        for name, module in model.named_modules()
        if isinstance(module.forward, Recompute)
        or (isinstance(module, GradientCheckpointingLayer) and module.gradient_checkpointing)
    ]


def _count(counts: dict[str, int], name: str, _module: nn.Module, _inputs: Any) -> None:
    counts[name] += 1


def _note_need(needed: set[str], name: str, _module: nn.Module, _inputs: Any, output: Any) -> None:
    outputs = output if isinstance(output, tuple) else (output,)
    if any(isinstance(item, Tensor) and item.requires_grad for item in outputs):
        needed.add(name)


def turn_caches_off(model: nn.Module) -> None:
    """Set ``use_cache`` to False in every configuration of every module, nested ones and generation's included."""
    for module in model.modules():
        for name in ("config", "generation_config"):
            _no_cache(vars(module).get(name), seen=set())


def _no_cache(config: Any, *, seen: set[int]) -> None:
    if config is None or id(config) in seen:
        return
    seen.add(id(config))
    values = vars(config)
    if "use_cache" in values:
        config.use_cache = False
    for value in list(values.values()):
        if isinstance(value, PreTrainedConfig):
            _no_cache(value, seen=seen)


def _enable_hf(model: nn.Module) -> tuple[str, ...]:
    inner = next((module for module in model.modules() if isinstance(module, PreTrainedModel)), None)
    if inner is None or not inner.supports_gradient_checkpointing:
        raise CapabilityError(
            f"{type(model).__name__} has no gradient checkpointing of its own: use mode='custom' with targets"
        )
    # its name in newer versions of transformers, where the older one warns
    enable = getattr(inner, "activation_checkpointing_enable", inner.gradient_checkpointing_enable)
    enable({"use_reentrant": False, "preserve_rng_state": True})
    # It made inputs require gradients, for the reentrant form: a frozen tower would be run backwards, for nothing.
    inner.disable_input_require_grads()
    return tuple(
        name
        for name, module in model.named_modules()
        if isinstance(module, GradientCheckpointingLayer) and module.gradient_checkpointing
    )


def _find(model: nn.Module, target: str) -> list[tuple[str, nn.Module]]:
    parent_class, mark, child = target.partition(":")
    if not (parent_class and mark and child) or ":" in child:
        raise ConfigError(f"a target is spelled 'ParentClass:child', got {target!r}")
    parents = [(name, module) for name, module in model.named_modules() if type(module).__name__ == parent_class]
    found = []
    for name, parent in parents:
        module = dict(parent.named_children()).get(child)
        if module is None:
            continue
        path = f"{name}.{child}" if name else child
        items = [(f"{path}.{i}", item) for i, item in enumerate(module)] if isinstance(module, nn.ModuleList) else None
        found += items or [(path, module)]
    if not found:
        has = sorted({child for _, parent in parents for child, _ in parent.named_children()})
        classes = ", ".join(sorted({type(module).__name__ for module in model.modules()})[:40])
        why = f"{parent_class} has the children {', '.join(has)}" if parents else f"the model has the classes {classes}"
        raise ConfigError(f"the target {target!r} matches no module: {why}")
    return found


def _check_apart(model: nn.Module, hf: Sequence[str], custom: Sequence[str]) -> None:
    """No module is recomputed within another that is: it would run three times."""
    done = {name for name, module in model.named_modules() if isinstance(module.forward, Recompute)}
    taken = [*hf, *done]
    for index, name in enumerate(custom):
        others = (*taken, *custom[:index], *custom[index + 1 :])
        clash = next((other for other in others if f"{name}.".startswith(f"{other}.")), None)
        clash = clash or next((other for other in taken if other.startswith(f"{name}.")), None)
        if clash is not None:
            raise ConfigError(f"the target {name} lies within, or around, {clash}, which is recomputed already")
