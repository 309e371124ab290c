"""Tokens per second and memory of training on packed rows, by attention backend, against the same rows padded.

python benchmarks/gpu/packed_attention.py [--layers 12] [--hidden 2048]      needs a CUDA device; under four minutes
"""

from __future__ import annotations

import argparse
import importlib.util
import math
import random
import sys
import time

import torch
from transformers import Qwen2Config, Qwen2ForCausalLM

from packloom.collates import collate_packed, collate_padded
from packloom.models import forward_step
from packloom.types import EncodedSample, Row

VOCABULARY = 32_000
PACK_LENGTH = 8192
STEPS, WARMUP = 8, 3


def rows_of(seed: int) -> list[Row]:
    """Rows of log-normal lengths, together at most PACK_LENGTH tokens."""
    rng, rows, room = random.Random(seed), [], PACK_LENGTH
    while True:
        length = min(4096, max(32, int(rng.lognormvariate(math.log(600), 0.8))))
        if length > room:
            return rows
        ids = torch.randint(1, VOCABULARY, (length,), generator=torch.Generator().manual_seed(rng.getrandbits(40)))
        mask = torch.arange(length) >= length // 2
        positions = torch.arange(length)[None]
        sample = EncodedSample(key=str(len(rows)), input_ids=ids, loss_mask=mask, position_ids=positions)
        rows.append(Row(sample=sample))
        room -= length


def measure(model: torch.nn.Module, layout: str, attn: str) -> tuple[float, float]:
    """Real tokens per second, and the peak of memory in GiB."""
    collate = collate_packed if layout == "packed" else collate_padded
    batches = [collate(rows_of(seed), pad_id=0, label_shift="next_token") for seed in range(STEPS + WARMUP)]
    model.set_attn_implementation(attn)
    torch.cuda.reset_peak_memory_stats()
    started, tokens = 0.0, 0
    for number, batch in enumerate(batches):
        if number == WARMUP:
            torch.cuda.synchronize()
            started = time.perf_counter()
        output, loss_func = forward_step(iter([batch]), model, attn=attn)
        loss, count, _ = loss_func(output)
        (loss / count).backward()
        model.zero_grad(set_to_none=True)
        tokens += batch["num_input_tokens"] if number >= WARMUP else 0
    torch.cuda.synchronize()
    return tokens / (time.perf_counter() - started), torch.cuda.max_memory_allocated() / 2**30


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--layers", type=int, default=12)
    parser.add_argument("--hidden", type=int, default=2048)
    arguments = parser.parse_args()
    if not torch.cuda.is_available():
        print("skipped: no CUDA device")
        return 0
    config = Qwen2Config(
        vocab_size=VOCABULARY,
        hidden_size=arguments.hidden,
        intermediate_size=4 * arguments.hidden,
        num_hidden_layers=arguments.layers,
        num_attention_heads=arguments.hidden // 128,
        num_key_value_heads=arguments.hidden // 256,
    )
    with torch.device("cuda"):
        model = Qwen2ForCausalLM(config).to(torch.bfloat16).train()
    model.gradient_checkpointing_enable({"use_reentrant": False})
    attentions = ["sdpa", "flex_attention"]
    if importlib.util.find_spec("flash_attn") is not None:
        attentions.append("flash_attention_2")
    base, _ = 0.0, print(f"{'layout':8} {'attention':18} {'tokens/s':>10} {'of padded':>10} {'peak GiB':>9}")
    for layout, attn in [("padded", "sdpa"), *(("packed", attn) for attn in attentions)]:
        speed, memory = measure(model, layout, attn)
        base = base or speed
        print(f"{layout:8} {attn:18} {speed:10,.0f} {speed / base:9.2f}x {memory:9.2f}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
