"""Shards in, packed batches out: what `make demo` left in demo-out/ is read, packed and looked at.

python examples/read_batches.py [PROCESSOR] [SHARDS]
"""

import sys

import packloom

processor = sys.argv[1] if len(sys.argv) > 1 else "demo-out/processor"  # or a hub name
shards = sys.argv[2] if len(sys.argv) > 2 else "demo-out/shards"

encoder = packloom.TaskEncoder.from_pretrained(processor, max_length=1024, max_pixels=96 * 28 * 28)
loader = packloom.build_loader(shards, encoder, layout="packed", pack_length=1024, num_workers=0, seed=0, epochs=1)

batch = next(iter(loader))
for name, value in batch.items():
    print(f"{name:18}", list(value.shape) if hasattr(value, "shape") else str(value)[:60])
