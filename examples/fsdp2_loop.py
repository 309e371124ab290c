"""FSDP2 with a frozen vision tower, on ranks of which some have text only, with a checkpoint that any rank count loads.

torchrun --nproc-per-node 2 examples/fsdp2_loop.py [PROCESSOR] [SHARDS]
"""

import sys
from pathlib import Path

import torch
import torch.distributed as dist
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_state_dict, set_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from transformers.modeling_layers import GradientCheckpointingLayer

import packloom
from packloom.demo.model import tiny_model
from packloom.models import backward_scale, forward_step, reduce_count
from packloom.models.model_kit import apply_freeze_policy, build_optimiser, parallelise

WHOLE = StateDictOptions(full_state_dict=True, cpu_offload=True, broadcast_from_rank0=True)


def prepare(model, mesh):
    """Freeze the tower, then shard every layer: each rank must run each of them, so no rank may lack an image."""
    print(apply_freeze_policy(model, vision=True))

    def shard(whole):
        for module in whole.modules():
            if isinstance(module, GradientCheckpointingLayer):  # a layer of the tower or of the language model
                fully_shard(module, mesh=mesh)
        return fully_shard(whole, mesh=mesh)

    return parallelise(model, shard)


def train_step(model, batch):
    """Gradients of the mean loss over the supervised tokens of all ranks; that loss."""
    total = reduce_count(batch["num_loss_tokens"])
    output, loss_func = forward_step(iter([batch]), model)
    loss, _, _ = loss_func(output)
    (loss * backward_scale(total)).backward()
    return loss.detach() * (1 / max(total, 1))


def save(folder, step, model, optimiser, loader):
    """Everything that a run of any number of ranks needs to go on: rank 0 writes one file, each rank its loader."""
    packloom.save_state_dir(folder, loader.state_dict(), step=step)
    model_state, optimiser_state = get_state_dict(model, optimiser, options=WHOLE)
    dist.barrier()  # the file comes last: where it is, all of its step is
    if dist.get_rank() == 0:
        torch.save({"model": model_state, "optimiser": optimiser_state}, f"{folder}/model-{step}.pt")
    dist.barrier()


def load(folder, step, model, optimiser, loader):
    """Any number of ranks loads what any number saved."""
    state = {"model": {}, "optimiser": {}}
    if dist.get_rank() == 0:
        state = torch.load(f"{folder}/model-{step}.pt", weights_only=True)
    set_state_dict(
        model, optimiser, model_state_dict=state["model"], optim_state_dict=state["optimiser"], options=WHOLE
    )
    loader.load_state_dict(packloom.load_state_dir(folder, step))


def main(processor="demo-out/processor", shards="demo-out/shards", folder="demo-out/fsdp2"):
    cuda = torch.cuda.is_available()
    dist.init_process_group("nccl" if cuda else "gloo")
    mesh = init_device_mesh("cuda" if cuda else "cpu", (dist.get_world_size(),), mesh_dim_names=("dp",))
    encoder = packloom.TaskEncoder.from_pretrained(processor, max_length=512, max_pixels=96 * 28 * 28)
    loader = packloom.build_loader(shards, encoder, pack_length=1024, device_mesh=mesh, dummy_media="per_batch")
    model = prepare(tiny_model(encoder), mesh)
    optimiser = build_optimiser(model, torch.optim.AdamW, lr=1e-3)
    start = max((int(path.stem.split("-")[1]) for path in Path(folder).glob("model-*.pt")), default=0)
    if start:
        load(folder, start, model, optimiser, loader)
    batches = iter(loader)
    for step in range(start, start + 3):
        loss = train_step(model, next(batches))
        optimiser.step()
        optimiser.zero_grad(set_to_none=True)
        print(f"rank {dist.get_rank()} step {step}: its part of the loss {loss:.4f}")
    save(folder, start + 3, model, optimiser, loader)
    dist.destroy_process_group()


if __name__ == "__main__":
    main(*sys.argv[1:])
