"""A data iterator and a model go in; the model's logits and the function that turns them into a loss come out."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any, Literal, get_args

import torch
from torch import Tensor, nn

from packloom.errors import BatchError, ConfigError
from packloom.models.device import to_device
from packloom.models.hf import hf_model_inputs
from packloom.models.loss import lm_loss, next_token_targets, sample_weights
from packloom.models.routing import with_pixels_on
from packloom.models.segments import is_packed
from packloom.models.signature import (
    ForwardSignature,
    check_full_attention,
    check_image_masks,
    check_packable,
    fit_arguments,
)
from packloom.types import IGNORE_INDEX

#: What the loss is a mean over: supervised tokens, or samples, each of which counts alike.
Average = Literal["tokens", "samples"]
LossFunc = Callable[[Tensor], tuple[Tensor, Tensor, dict[str, Tensor]]]


def forward_step(
    data_iterator: Iterator[Mapping[str, Any]],
    model: nn.Module,
    *,
    attn: str = "sdpa",
    explicit_mask: bool = False,
    average: Average = "tokens",
) -> tuple[Tensor, LossFunc]:
    """One forward pass of a Megatron-style loop over a plain Hugging Face model: ``(output, loss_func)``.

    Takes the next batch, routes its finished fields to the arguments of the model, and moves them to the device of
    its first parameter. ``loss_func(output)`` gives ``(loss_sum, num_tokens, {"lm loss": [loss_sum, num_tokens]})``,
    see ``lm_loss``. ``output`` holds logits [B, K, V]: if the model takes ``logits_to_keep``, K counts only the
    positions with a target in some row, which saves most of the memory; else K is the whole length.

    The batch is best left on the CPU until here. ``attn`` and ``explicit_mask`` are as for ``hf_model_inputs``; bind
    them with ``functools.partial``. ``average="samples"`` counts each sample alike, see ``sample_weights``. Wrappers
    that pass arguments on, like DDP, are fine. For models of Megatron Core there is ``MegatronStep``.

    Raises StopIteration when the iterator is exhausted, BatchError for a batch that breaks the contract or has a
    field that the model does not take, and CapabilityError for a packed batch and a model with layers that do not keep
    its segments apart.
    """
    if average not in get_args(Average):
        raise ConfigError(f"average must be one of {', '.join(get_args(Average))}, got {average!r}")
    batch = next_batch(data_iterator)
    device = device_of(model)
    if attn == "flex_attention":  # its mask is made where it is used
        batch = to_device(batch, device)
    batch = with_pixels_on(batch, device)
    signature = ForwardSignature.of(model)
    arguments = hf_model_inputs(batch, attn=attn, explicit_mask=explicit_mask, extra=signature.direct)
    inputs = fit_arguments(arguments, signature)
    if is_packed(batch):
        check_packable(model, batch["position_ids"])
        check_image_masks(model, batch)
        if inputs.get("attention_mask") is not None:
            check_full_attention(model)
    targets = next_token_targets(batch)
    weights = sample_weights(batch, targets) if average == "samples" else None
    if "logits_to_keep" in signature.direct:
        inputs["logits_to_keep"] = columns = _columns_with_targets(targets)
        targets = targets[:, columns]
        weights = None if weights is None else weights[:, columns]
    output = model(**to_device(inputs, device))
    logits = output if isinstance(output, Tensor) else output.logits
    return logits, partial(lm_loss, **to_device({"targets": targets, "weights": weights}, logits.device))


def next_batch(data_iterator: Iterator[Mapping[str, Any]]) -> Mapping[str, Any]:
    """The iterator's next batch; what is no iterator, or gives no mapping, is refused."""
    if not isinstance(data_iterator, Iterator):
        raise ConfigError(
            f"forward_step reads from an iterator of batches, got {type(data_iterator).__name__}; pass iter(loader), "
            "and give every rank that runs the model one"
        )
    batch = next(data_iterator)
    if not isinstance(batch, Mapping):
        raise BatchError(f"a batch is a mapping from field name to tensor, got {type(batch).__name__}")
    return batch


def _columns_with_targets(targets: Tensor) -> Tensor:
    """Never empty, since not every kernel takes a matrix without rows; a column too many has no target."""
    columns = (targets != IGNORE_INDEX).any(dim=0).nonzero()[:, 0]
    return columns if len(columns) else columns.new_zeros(1)


def device_of(model: nn.Module) -> torch.device:
    """Where the model's first parameter is; the CPU for a model without any."""
    first = next(model.parameters(), None)
    return torch.device("cpu") if first is None else first.device
