"""Every pack of a loader has a medium, inside its length; a sample with an image may take the room of the dummy."""

from __future__ import annotations

import io

import pytest
from PIL import Image

from packloom import TaskEncoder, build_loader
from packloom.datasets import write_shards
from packloom.errors import ConfigError

LENGTH = 64


def raw(number, words, *, image=False):
    question = [{"type": "text", "text": "Go."}]
    media = {}
    if image:
        buffer = io.BytesIO()
        Image.new("RGB", (56, 56), "red").save(buffer, "PNG")
        media["0.png"] = buffer.getvalue()
        question.insert(0, {"type": "image", "image": "0.png"})
    answer = [{"type": "text", "text": " word" * words}]
    messages = [{"role": "user", "content": question}, {"role": "assistant", "content": answer}]
    return {"__key__": f"r{number:02}", "json": {"messages": messages}, **media}


@pytest.fixture(scope="module")
def encoder(processor_dir):
    return TaskEncoder.from_pretrained(processor_dir("qwen2_5_vl"), max_length=LENGTH)


def test_every_pack_has_a_medium_within_its_length(encoder, tmp_path):
    longest = encoder.encode_sample(raw(0, 1, image=True)).num_tokens - 1
    raws = [raw(number, 2 + number % 5) for number in range(9)]
    full = raw(90, LENGTH - longest, image=True)  # fills a pack to the last token
    over = raw(91, LENGTH - encoder.encode_sample(raw(0, 0)).num_tokens)  # as long, without an image
    assert encoder.encode_sample(full).num_tokens == encoder.encode_sample(over).num_tokens == LENGTH
    write_shards([*raws, full, over], tmp_path, samples_per_shard=20)
    loader = build_loader(tmp_path, encoder, pack_length=LENGTH, dummy_media="per_batch", epochs=1, shuffle=False)
    keys = []
    for batch in loader:
        assert batch["input_ids"].shape[1] <= LENGTH
        assert batch["image_grid_thw"].tolist() == [[1, 4, 4]]
        keys += batch["sample_keys"]
    assert sorted(keys) == [*(f"r{number:02}" for number in range(9)), "r90"]
    assert dict(loader.skipped) == {"pack.too_long": 1}


def test_a_dummy_must_fit(encoder, tmp_path):
    write_shards([raw(0, 2)], tmp_path, samples_per_shard=1)
    short = type(encoder)(encoder.parts)
    with pytest.raises(ConfigError, match="a dummy medium takes 6 tokens, and pack_length is 6"):
        next(iter(build_loader(tmp_path, short, pack_length=6, dummy_media="per_batch", epochs=1)))
