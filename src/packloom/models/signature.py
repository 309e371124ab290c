"""A model goes in; what its forward can be given comes out."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from torch import nn
from transformers import PreTrainedConfig

from packloom.errors import BatchError, CapabilityError

# Layer types (transformers, configuration_utils) whose attention reads the mask that keeps segments apart. Recurrent
# and convolutional layers carry state over a boundary, and would do so in silence.
_PACKABLE_LAYERS = frozenset(("full_attention", "sliding_attention", "chunked_attention", "sparse", "dense"))

# A model that has no argument for these does not need them.
_DROPPABLE = frozenset(("mm_token_type_ids", "token_type_ids", "use_cache"))


@dataclass(frozen=True, kw_only=True)
class ForwardSignature:
    """The arguments of the outermost forward that names ``input_ids``: wrappers like DDP hide theirs."""

    direct: frozenset[str]  # named by that forward itself
    nested: frozenset[str]  # named by a module inside it, reached through its **kwargs

    @classmethod
    def of(cls, model: nn.Module) -> ForwardSignature:
        """Read from the classes of the model's modules, once per class."""
        named = [_parameters(type(module)) for module in model.modules()]
        entry = next((names for names in named if "input_ids" in names), named[0])
        takes_any = entry & _CATCH_ALL
        return cls(direct=entry, nested=frozenset().union(*named) if takes_any else frozenset())

    def names(self, argument: str) -> bool:
        """True if the forward, or a module that its ``**kwargs`` reach, has this argument."""
        return argument in self.direct or argument in self.nested
