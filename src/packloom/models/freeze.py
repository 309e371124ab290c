"""A model and the components to freeze go in; their parameters are frozen, and a report of what is comes out."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

import torch
from torch import nn

from packloom.errors import ConfigError
from packloom.models.components import (
    COMPONENTS,
    Component,
    ComponentMap,
    assign_components,
    find_components,
    named_parameters,
    without_wrappers,
)
from packloom.models.kit_order import take_step


@dataclass(frozen=True, kw_only=True)
class FreezeReport:
    """Of each component: parameters (single numbers) that are frozen, and that are trained. ``str()`` is a table."""

    frozen: dict[Component, int]
    trained: dict[Component, int]
    frozen_names: tuple[str, ...]

    def __str__(self) -> str:
        lines = [f"{'component':<10} {'frozen':>15} {'trained':>15}"]
        lines += [f"{name:<10} {self.frozen[name]:>15,} {self.trained[name]:>15,}" for name in COMPONENTS]
        return "\n".join(lines)


def apply_freeze_policy(
    model: nn.Module,
    *,
    vision: bool = False,
    projector: bool = False,
    language: bool = False,
    components: ComponentMap | None = None,
    frozen_eval: bool = True,
) -> FreezeReport:
    """Freeze the components that are True: their parameters get ``requires_grad=False``; others stay as they are.

    A frozen component that no gradient passes through (the vision tower, and behind a frozen one the projector) also
    runs in eval mode from now on, whatever ``model.train()`` says: no dropout, and running statistics stand still.
    ``frozen_eval=False`` leaves the mode to the training loop. A frozen language model follows the loop in any case:
    gradients pass through it, and layers in eval mode are not recomputed.

    ``components`` replaces the built-in map of the model's type. Raises ConfigError for a map that leaves parameters
    out, claims one twice or matches nothing; for a component that the model does not have; for a tied parameter
    (embedding and output head, say) that is frozen under one name and trained under another; and where nothing is left
    to train. Nothing is changed then.
    """
    found = components or find_components(model)
    assigned = assign_components(model, found)
    freeze: dict[Component, bool] = {"vision": vision, "projector": projector, "language": language}
    absent = [item for item in COMPONENTS if freeze[item] and item not in assigned.values()]
    if absent:
        raise ConfigError(f"this model has no parameters that are {', '.join(absent)}: there is nothing to freeze")
    parameters = list(named_parameters(model))
    _check_tied(parameters, assigned, freeze)
    stays = [p for name, p in parameters if p.requires_grad and not freeze[assigned[name]]]
    if not stays:
        chosen = ", ".join(name for name, value in freeze.items() if value)
        raise ConfigError(f"freezing {chosen or 'nothing'} leaves no parameter to train")
    take_step(model, "freeze")
    for name, parameter in parameters:
        if freeze[assigned[name]]:
            parameter.requires_grad_(False)
    if frozen_eval and vision:
        _keep_in_eval(model, (*found.vision, *(found.projector if projector else ())))
    return _report(parameters, assigned)


def upcast_trainable(model: nn.Module, dtype: torch.dtype = torch.float32) -> int:
    """Cast the trained parameters to ``dtype``, so that small updates are not lost; the number of parameters cast."""
    take_step(model, "upcast")
    chosen = [parameter for parameter in model.parameters() if parameter.requires_grad and parameter.dtype != dtype]
    for parameter in chosen:
        parameter.data = parameter.data.to(dtype)
    return sum(parameter.numel() for parameter in chosen)


def _keep_in_eval(model: nn.Module, prefixes: tuple[str, ...]) -> None:
    for name, module in model.named_modules():
        bare = without_wrappers(name)
        if any(bare == prefix or bare.startswith(f"{prefix}.") for prefix in prefixes):
            module.eval()
            module.register_forward_pre_hook(_stay_in_eval)


def _stay_in_eval(module: nn.Module, _inputs: object) -> None:
    """A hook and no replaced ``train``, so that the model can still be copied and pickled."""
    module.training = False


def _check_tied(
    parameters: list[tuple[str, nn.Parameter]], assigned: dict[str, Component], freeze: dict[Component, bool]
) -> None:
    first: dict[int, str] = {}
    for name, parameter in parameters:
        other = first.setdefault(id(parameter), name)
        if freeze[assigned[name]] != freeze[assigned[other]]:
            raise ConfigError(
                f"{other} ({assigned[other]}) and {name} ({assigned[name]}) are one tied parameter: freeze both or none"
            )


def _report(parameters: list[tuple[str, nn.Parameter]], assigned: dict[str, Component]) -> FreezeReport:
    frozen: Counter[Component] = Counter(dict.fromkeys(COMPONENTS, 0))
    trained: Counter[Component] = Counter(dict.fromkeys(COMPONENTS, 0))
    seen: set[int] = set()
    for name, parameter in parameters:
        if id(parameter) not in seen:
            (trained if parameter.requires_grad else frozen)[assigned[name]] += parameter.numel()
            seen.add(id(parameter))
    names = tuple(name for name, parameter in parameters if not parameter.requires_grad)
    return FreezeReport(frozen=dict(frozen), trained=dict(trained), frozen_names=names)
