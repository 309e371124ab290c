"""Your rows in, shards out, then the same rows as the model will read them: three common row layouts side by side.

python examples/your_own_data.py [PROCESSOR] [FOLDER]
"""

import io
import sys

from PIL import Image

import packloom
from packloom.datasets import read_shard, write_shards

processor = sys.argv[1] if len(sys.argv) > 1 else "demo-out/processor"  # or a hub name
folder = sys.argv[2] if len(sys.argv) > 2 else "demo-out/own-shards"


def picture(color: str) -> bytes:
    """A plain picture as a file's bytes; yours come from disk."""
    file = io.BytesIO()
    Image.new("RGB", (112, 84), color).save(file, format="PNG")
    return file.getvalue()


openai = {
    "messages": [
        {"role": "user", "content": [{"type": "image", "image": "0.png"}, {"type": "text", "text": "Which colour?"}]},
        {"role": "assistant", "content": "Red."},
    ]
}
llava = {
    "conversations": [
        {"from": "human", "value": "<image>\nWhich colour?"},
        {"from": "gpt", "value": "Green."},
    ]
}
rows = [
    {"__key__": "openai-0", "json": openai, "0.png": picture("red")},
    {"__key__": "llava-0", "json": llava, "0.png": picture("green")},
    {"__key__": "caption-0", "txt": "A blue picture.", "png": picture("blue")},
]

encoder = packloom.TaskEncoder.from_pretrained(processor, max_length=1024)
for shard in write_shards(rows, folder, overwrite=True):
    for raw in read_shard(str(shard)):
        print(packloom.inspect_sample(encoder, raw))
