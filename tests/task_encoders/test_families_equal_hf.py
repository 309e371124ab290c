"""Every family against its own Hugging Face processor: token ids, token types and media tensors, bit for bit."""

from __future__ import annotations

import io
from typing import Any

import pytest
import torch
from PIL import Image

from packloom import TaskEncoder

FAMILIES = [
    "gemma3",
    "gemma4",
    "glm46v",
    "glm4v",
    "internvl3",
    "kimi_k25",
    "llava",
    "llava_next",
    "llava_onevision",
    "ministral3",
    "mistral3",
    "pixtral",
    "qwen2_5_vl",
    "qwen2_vl",
    "qwen3_5",
    "qwen3_vl",
    "smolvlm",
]
SIZES = {"text only": [], "one": [(300, 451)], "two, mixed": [(200, 90), (64, 64)]}
#: The stop token that the encoder writes behind a last turn where the template leaves it out.
APPENDED = {"glm4v": "<|endoftext|>", "glm46v": "<|endoftext|>"}


@pytest.fixture(scope="module")
def processor_of(processor_dir) -> Any:
    pytest.importorskip("torchvision", reason="torchvision is not installed: transformers refuses whole processors")
    from transformers import AutoProcessor  # noqa: PLC0415 - after torchvision was made importable

    made: dict[str, Any] = {}

    def make(family: str) -> Any:
        if family not in made:
            made[family] = AutoProcessor.from_pretrained(processor_dir(family))
        return made[family]

    return make


def hf_messages(row: dict[str, Any], *, strings_for_assistant: bool) -> list[dict[str, Any]]:
    def part(item: dict[str, Any]) -> dict[str, Any]:
        return (
            item if item["type"] == "text" else {"type": "image", "image": Image.open(io.BytesIO(row[item["image"]]))}
        )

    def content(message: dict[str, Any]) -> Any:
        if strings_for_assistant and message["role"] == "assistant":
            return message["content"][0]["text"]
        return [part(item) for item in message["content"]]

    return [{**message, "content": content(message)} for message in row["json"]["messages"]]


@pytest.mark.parametrize("sizes", SIZES.values(), ids=SIZES)
@pytest.mark.parametrize("family", FAMILIES)
def test_tokens_and_media_equal_the_processors(family, sizes, processor_of, chat_row):
    processor = processor_of(family)
    encoder = TaskEncoder.from_processor(processor)
    row = chat_row(sizes)
    if family == "llava_next":  # its template moves images to the front of a turn
        for message in row["json"]["messages"]:
            message["content"].sort(key=lambda item: item["type"] == "text")
    [made] = encoder.batch([encoder.encode_sample(row)])
    theirs = dict(
        processor.apply_chat_template(
            hf_messages(row, strings_for_assistant=family == "glm4v"),
            tokenize=True,
            return_dict=True,
            processor_kwargs={"return_tensors": "pt"},
        )
    )
    theirs = {name: torch.as_tensor(value) for name, value in theirs.items() if name != "attention_mask"}

    appended = encoder.parts.tokenizer.convert_tokens_to_ids([APPENDED[family]] if family in APPENDED else [])
    assert made.sample.input_ids.tolist() == [*theirs.pop("input_ids")[0].tolist(), *appended]
    for name, types in made.sample.token_tensors.items():
        assert types.tolist() == [*theirs.pop(name)[0].tolist(), *[0] * len(appended)], name
    assert set(made.media_tensors) == set(theirs)
    assert bool(theirs) == bool(sizes)
    batch = encoder.collate([made], layout="padded")
    for name, tensor in theirs.items():
        assert torch.equal(batch[name], tensor), name
    assert int(made.sample.loss_mask.sum()) >= 4
    assert not set(made.sample.input_ids[made.sample.loss_mask].tolist()) & set(encoder.media_ids.tolist())
