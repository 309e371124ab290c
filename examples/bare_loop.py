"""A bare training loop over packed batches, with gradients of the mean over all supervised tokens of a step.

python examples/bare_loop.py [PROCESSOR] [SHARDS]      (what `make demo` left in demo-out/ by default)
"""

import sys
from itertools import islice

import torch

import packloom
from packloom.demo.model import tiny_model
from packloom.models import backward_scale, forward_step, reduce_count

ACCUMULATION = 2
processor, shards = [*sys.argv[1:], "demo-out/processor", "demo-out/shards"][:2]

encoder = packloom.TaskEncoder.from_pretrained(processor, max_length=256, max_pixels=24 * 28 * 28)
loader = packloom.build_loader(shards, encoder, pack_length=256, epochs=1)
model = tiny_model(encoder).to("cuda" if torch.cuda.is_available() else "cpu")
optimiser = torch.optim.AdamW(model.parameters(), lr=1e-3)

batches = iter(loader)
for step in range(3):
    window = list(islice(batches, ACCUMULATION))
    total = reduce_count(sum(batch["num_loss_tokens"] for batch in window))  # over all ranks, where there are several
    loss_sum = 0.0
    for batch in window:
        output, loss_func = forward_step(iter([batch]), model)
        loss, _, _ = loss_func(output)
        (loss * backward_scale(total)).backward()
        loss_sum += loss.item()
    optimiser.step()
    optimiser.zero_grad(set_to_none=True)
    print(f"step {step}: loss {loss_sum / total:.4f} over {total} tokens")
