"""A model and the arguments meant for it go in; the arguments that its forward takes come out."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

from torch import Tensor, nn
from transformers import PreTrainedConfig

from packloom.errors import BatchError, CapabilityError

# Read below any module's forward, so no signature names them; they travel in **kwargs.
_TRAVELLERS = frozenset(("use_cache", "cu_seq_lens_q", "cu_seq_lens_k", "max_length_q", "max_length_k"))

# A model without an argument for these does not need them.
_DROPPABLE = frozenset(("mm_token_type_ids", "token_type_ids", "use_cache"))

# Layer types (names of transformers' configs) whose attention reads the mask that keeps segments apart. Recurrent and
# convolutional layers would carry state over a boundary, in silence.
_PACKABLE_LAYERS = frozenset(("full_attention", "sliding_attention", "chunked_attention"))

# Model types that open their sliding layers inside an image by a mask which is looked up at text positions. Those
# restart in every segment, so later segments get the openings of the first one, and see their own future (read in
# transformers 5.24: ``or_mask_function`` in ``create_masks_for_vision_model`` of their modeling files).
_IMAGE_MASK_MODELS = frozenset(("gemma3", "gemma4", "gemma4_unified"))


@dataclass(frozen=True, kw_only=True)
class ForwardSignature:
    """What the outermost forward that names ``input_ids`` takes; wrappers like DDP name nothing themselves.

    If no module names ``input_ids``, nothing is known, and a forward with ``**kwargs`` takes all.
    """

    direct: frozenset[str]  # named by that forward itself
    nested: frozenset[str]  # named by some module inside the model
    open: bool  # it passes **kwargs on

    @classmethod
    def of(cls, model: nn.Module) -> ForwardSignature:
        """Read from the classes of the model's modules, each class once per process."""
        signatures = [_parameters(type(module).forward) for module in model.modules()]
        direct, is_open = next((entry for entry in signatures if "input_ids" in entry[0]), signatures[0])
        return cls(direct=direct, nested=frozenset().union(*(names for names, _ in signatures)), open=is_open)

    def takes(self, name: str) -> bool:
        """True if an argument of this name reaches the code that reads it."""
        if name in self.direct or not self.open:
            return name in self.direct
        return name in self.nested or name in _TRAVELLERS or "input_ids" not in self.direct


@cache
def _parameters(forward: Callable[..., Any]) -> tuple[frozenset[str], bool]:
    parameters = inspect.signature(forward).parameters.values()
    named = frozenset(p.name for p in parameters if p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD))
    return named, any(p.kind is p.VAR_KEYWORD for p in parameters)


def fit_arguments(
    arguments: Mapping[str, Any],
    signature: ForwardSignature,
    *,
    droppable: frozenset[str] = _DROPPABLE,
    vouched: Collection[str] = (),
) -> dict[str, Any]:
    """``arguments`` without those that the model has no use for: ``droppable`` ones, and those that are None.

    Raises BatchError for one that it should read but does not name: through ``**kwargs`` it would vanish in silence.
    The user vouches that ``vouched`` ones are read there all the same.
    """
    trusted = set(vouched) if signature.open else set()
    unread = {name for name in arguments if name not in trusted and not signature.takes(name)}
    lost = sorted(name for name in unread - droppable if arguments[name] is not None)
    if lost:
        raise BatchError(
            f"the model's forward takes no {', '.join(lost)}: either the batch was made for another model family, or "
            "a wrapper around the model has to name these arguments in its forward"
        )
    return {name: value for name, value in arguments.items() if name not in unread}


def check_packable(model: nn.Module, position_ids: Tensor) -> None:
    """Refuse a packed batch with which a Hugging Face model would mix segments in silence.

    Raises CapabilityError for layers that ignore the boundaries, and BatchError for one-axis positions ``[1, T]``
    given to a model with mRoPE: most of those look for boundaries in the text row of four and nowhere else.
    """
    config = model_config(model)
    if config is None:
        return
    text_config = vars(config.get_text_config())
    mixing = sorted(set(text_config.get("layer_types") or ()) - _PACKABLE_LAYERS)
    if mixing:
        raise CapabilityError(
            f"{config.model_type} has {', '.join(mixing)} layers, which do not keep packed segments apart: "
            'use layout="padded" for this model'
        )
    if position_ids.ndim == 2 and "mrope_section" in (text_config.get("rope_parameters") or ()):
        raise BatchError(
            f"{config.model_type} wants mRoPE positions [3, 1, T] for a packed batch, got {list(position_ids.shape)}: "
            f"encode the samples with the task encoder of {config.model_type}"
        )


def check_full_attention(model: nn.Module) -> None:
    """Refuse an explicit mask for a model with layers that attend to a window: the mask would open all of a segment.

    Raises CapabilityError.
    """
    config = model_config(model)
    if config is None:
        return
    text_config = vars(config.get_text_config())
    layers = text_config.get("layer_types") or ()
    windowed = sorted(set(layers) - {"full_attention"}) if layers else text_config.get("sliding_window")
    if windowed and text_config.get("use_sliding_window", True):
        raise CapabilityError(
            f"{config.model_type} attends to a window in some layers ({windowed}), which an explicit mask takes away:"
            " leave explicit_mask out, and use attn='sdpa', 'eager' or flash attention"
        )


def check_image_masks(model: nn.Module, batch: Mapping[str, Any]) -> None:
    """Refuse a packed batch of several segments, some with image tokens, for a model whose image mask ignores segments.

    Raises CapabilityError. Packs of text only, and of one segment, are fine.
    """
    config = model_config(model)
    if config is None or config.model_type not in _IMAGE_MASK_MODELS or len(batch["cu_seqlens_q"]) <= 2:
        return
    if config.model_type != "gemma3" and vars(config.get_text_config()).get("use_bidirectional_attention") != "vision":
        return  # the small models of these types are causal inside images too
    types = [batch[name] for name in ("token_type_ids", "mm_token_type_ids") if name in batch]
    if any(bool(tensor.any()) for tensor in types):
        raise CapabilityError(
            f"{config.model_type} has a mask for image tokens, which does not keep packed segments apart: "
            'use layout="padded" for this model'
        )


def model_config(model: nn.Module) -> PreTrainedConfig | None:
    """The configuration of the outermost module that has one; wrappers like DDP have none."""
    configs = (vars(module).get("config") for module in model.modules())
    return next((item for item in configs if isinstance(item, PreTrainedConfig)), None)
