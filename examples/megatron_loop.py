"""Packed batches through Megatron Core's own schedule, with gradients normalised per token, and a loader that resumes.

torchrun --nproc-per-node 1 examples/megatron_loop.py [PROCESSOR] [SHARDS]     (pip install 'packloom[megatron]')
"""

import sys
from pathlib import Path

import torch
import torch.distributed as dist
from megatron.core import parallel_state
from megatron.core.enums import ModelType
from megatron.core.pipeline_parallel import get_forward_backward_func
from megatron.core.transformer.transformer_config import TransformerConfig

import packloom
from packloom.demo.model import tiny_model
from packloom.models import forward_step, reduce_report


def finalize(models, num_tokens, **_):
    """What Megatron's finalize_model_grads does with calculate_per_token_loss: one division by the step's tokens."""
    group = parallel_state.get_data_parallel_group(with_context_parallel=True)
    dist.all_reduce(num_tokens, group=group)
    for parameter in (p for model in models for p in model.parameters() if p.grad is not None):
        dist.all_reduce(parameter.grad, group=group)
        parameter.grad /= num_tokens.clamp(min=1)


class HuggingFaceStage(torch.nn.Module):
    """A whole Hugging Face model as the one stage of a pipeline. Megatron's own models need no such wrapper."""

    def __init__(self, model):
        super().__init__()
        self.model, self.model_type = model, ModelType.encoder_or_decoder
        self.config = TransformerConfig(
            num_layers=1,
            hidden_size=8,
            num_attention_heads=1,
            calculate_per_token_loss=True,
            finalize_model_grads_func=finalize,
        )

    def set_input_tensor(self, input_tensor):
        """Would take the hidden states of the stage before."""

    def forward(self, input_ids=None, logits_to_keep=0, **fields):
        return self.model(input_ids=input_ids, logits_to_keep=logits_to_keep, **fields)


def train_step(batches, stage, optimiser, num_microbatches=2):
    """One step of the schedule; the mean loss over its supervised tokens."""
    optimiser.zero_grad(set_to_none=True)
    reports = get_forward_backward_func()(
        forward_step_func=forward_step,
        data_iterator=batches,
        model=[stage],
        num_microbatches=num_microbatches,
        seq_length=1024,
        micro_batch_size=1,
        forward_only=False,
    )
    optimiser.step()
    return reduce_report(reports, parallel_state.get_data_parallel_group(with_context_parallel=True))["lm loss"]


def main(processor="demo-out/processor", shards="demo-out/shards", folder="demo-out/megatron"):
    dist.init_process_group("nccl" if torch.cuda.is_available() else "gloo")
    parallel_state.initialize_model_parallel()
    encoder = packloom.TaskEncoder.from_pretrained(processor, max_length=512, max_pixels=96 * 28 * 28)
    loader = packloom.build_loader(
        shards,
        encoder,
        pack_length=1024,
        dp_rank=parallel_state.get_data_parallel_rank(),
        dp_size=parallel_state.get_data_parallel_world_size(),
    )
    device = "cuda" if torch.cuda.is_available() else "cpu"
    stage = HuggingFaceStage(tiny_model(encoder)).to(device)
    optimiser = torch.optim.AdamW(stage.parameters(), lr=1e-3)
    if Path(folder).exists():  # with the model's checkpoint, which is Megatron's own business
        loader.load_state_dict(packloom.load_state_dir(folder))
    batches = iter(loader)
    for step in range(3):
        print(f"step {step}: loss {train_step(batches, stage, optimiser):.4f}")
    packloom.save_state_dir(folder, loader.state_dict(), step=3)  # the next run goes on at the very next batch
    dist.destroy_process_group()


if __name__ == "__main__":
    main(*sys.argv[1:])
