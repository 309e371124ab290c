"""A data iterator and a Megatron Core model go in; the output of its stage and its loss function come out."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, get_args

from torch import Tensor, nn

from packloom.errors import BatchError, CapabilityError, ConfigError
from packloom.models.forward_step import Average, LossFunc, device_of, next_batch
from packloom.models.loss import token_loss
from packloom.models.megatron import OPTIONAL_ARGUMENTS, StageInputs, stage_inputs
from packloom.models.routing import Stage
from packloom.models.segments import is_packed
from packloom.models.signature import ForwardSignature, fit_arguments


@dataclass(frozen=True, kw_only=True)
class MegatronStep:
    """``forward_step_func`` of Megatron Core's schedules, for its GPT and vision-language models.

    Call it as ``step(data_iterator, model)``: it takes the next batch, gives the model what its pipeline stage reads,
    and returns ``(output, loss_func)``. The last stage's model computes the loss of each token from ``labels``; a model
    that slices the sequence over context-parallel ranks returns ``(losses, sliced loss mask)``. Set
    ``calculate_per_token_loss`` in the model's config wherever batches hold different numbers of trained tokens.

    Raises StopIteration at the end of the data, and BatchError for a batch that does not fit the model or the settings.
    """

    stage: Stage | None = None  # None: as the model's pre_process and post_process say, "all" for a model without
    cp_size: int = 1
    cp_rank: int = 0
    cp_group: Any | None = None
    average: Average = "tokens"
    fixed_length: int | None = None  # pipelining without variable_seq_lengths wants one S or T for all batches
    extra: tuple[str, ...] = ()  # keys of your own, which every stage reads
    extra_content: tuple[str, ...] = ()  # keys of a new modality's tower, which the first stage reads

    @classmethod
    def from_parallel_state(cls, **settings: Any) -> MegatronStep:
        """With the context-parallel place that ``megatron.core.parallel_state`` knows; ``settings`` are the fields."""
        try:
            from megatron.core import parallel_state  # noqa: PLC0415  # an optional dependency
        except ImportError as error:
            raise CapabilityError("this needs Megatron Core: pip install 'packloom[megatron]'") from error
        place = {
            "cp_size": parallel_state.get_context_parallel_world_size(),
            "cp_rank": parallel_state.get_context_parallel_rank(),
            "cp_group": parallel_state.get_context_parallel_group(),
        }
        return cls(**{**place, **settings})

    def __post_init__(self) -> None:
        if not 0 <= self.cp_rank < self.cp_size:
            raise ConfigError(f"cp_rank {self.cp_rank} is not in 0..{self.cp_size - 1}, the ranks of cp_size")
        if self.average not in get_args(Average):
            raise ConfigError(f"average must be one of {', '.join(get_args(Average))}, got {self.average!r}")

    def __call__(self, data_iterator: Iterator[Mapping[str, Any]], model: nn.Module) -> tuple[Tensor, LossFunc]:
        """See the class; the model's parameters say on which device the batch is wanted."""
        batch = next_batch(data_iterator)
        self._check_length(batch)
        stage = self.stage or stage_of(model)
        inputs = stage_inputs(
            batch,
            stage,
            device=device_of(model),
            cp_size=self.cp_size,
            cp_group=self.cp_group,
            per_sample=self.average == "samples",
            extra=self.extra,
            extra_content=self.extra_content,
        )
        arguments = fit_arguments(
            inputs.arguments(),
            ForwardSignature.of(model),
            droppable=OPTIONAL_ARGUMENTS,
            vouched=(*self.extra, *self.extra_content),
        )
        output = model(**arguments)
        losses, mask = output if isinstance(output, tuple) else (output, inputs.loss_mask)
        return losses, partial(token_loss, weights=mask, number=self._number(batch, inputs))

    def _check_length(self, batch: Mapping[str, Any]) -> None:
        length = batch["input_ids"].shape[-1]
        if self.fixed_length is not None and length != self.fixed_length:
            kind = "T" if is_packed(batch) else "S"
            raise BatchError(
                f"the batch has {kind} = {length}, fixed_length is {self.fixed_length}: build the loader with"
                " pad_to_length=True (packed) or pad_to_multiple_of (padded), or set variable_seq_lengths in the"
                " model's config and leave fixed_length out"
            )
        if length % (2 * self.cp_size if self.cp_size > 1 else 1):
            raise BatchError(
                f"{length} tokens cannot be cut into 2 chunks for each of {self.cp_size} context-parallel ranks:"
                f" build the loader with cp_size={self.cp_size}"
            )

    def _number(self, batch: Mapping[str, Any], inputs: StageInputs) -> int | None:
        """Samples are counted on the first context-parallel rank, since each rank holds a part of every sample."""
        if self.average == "tokens" or inputs.loss_mask is None:
            return None
        return int(inputs.loss_mask.sum().round()) if self.cp_rank == 0 else 0


def stage_of(model: nn.Module) -> Stage:
    """The pipeline stage by the flags ``pre_process`` and ``post_process`` of Megatron's models, "all" without them."""
    for module in model.modules():
        flags = vars(module)
        if "pre_process" in flags and "post_process" in flags:
            first, last = bool(flags["pre_process"]), bool(flags["post_process"])
            if first:
                return "all" if last else "first"
            return "last" if last else "middle"
    return "all"
