"""A model and the next step of its preparation go in; the step is noted, or refused because a later one was done."""

from __future__ import annotations

from typing import Literal

from torch import nn
from torch.distributed.tensor import DTensor

from packloom.errors import ConfigError

Step = Literal["build", "patch", "freeze", "upcast", "checkpoint", "compile", "parallelise", "optimiser"]

#: Each step stands on those before it: an optimiser takes what is trainable, sharding what is compiled, and so on.
ORDER: tuple[Step, ...] = ("build", "patch", "freeze", "upcast", "checkpoint", "compile", "parallelise", "optimiser")

_NOTE = "_packloom_steps"  # on the model itself, so that it goes where the model goes


def take_step(model: nn.Module, step: Step) -> None:
    """Note that ``step`` is done to ``model`` now. Raises ConfigError, naming both, if a later step was done before.

    Sharded parameters and compiled modules are seen too where they were made by hand.
    """
    done = steps_taken(model)
    later = [item for item in done if ORDER.index(item) > ORDER.index(step)]
    if later:
        raise ConfigError(
            f"the step {step!r} must come before {later[0]!r}, which was done already; the order is {' → '.join(ORDER)}"
        )
    setattr(_noted(model), _NOTE, (*vars(_noted(model)).get(_NOTE, ()), step))


def steps_taken(model: nn.Module) -> list[Step]:
    """The steps that were done, in the order of ORDER."""
    done = set(vars(_noted(model)).get(_NOTE, ()))
    if any(isinstance(parameter, DTensor) for parameter in model.parameters()):
        done.add("parallelise")
    if any(vars(module).get("_compiled_call_impl") is not None for module in model.modules()):
        done.add("compile")
    return [step for step in ORDER if step in done]


def _noted(model: nn.Module) -> nn.Module:
    """The module that carries the note: below a wrapper like DDP it is the wrapped model."""
    return next((module for module in model.modules() if _NOTE in vars(module)), model)
