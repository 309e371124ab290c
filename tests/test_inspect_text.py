"""inspect_sample: the page says what is trained on, written out by hand for one conversation."""

from __future__ import annotations

import io
import json
from collections.abc import Callable
from pathlib import Path

import pytest
from PIL import Image

from packloom import TaskEncoder, inspect_sample
from packloom.errors import SampleError


@pytest.fixture(scope="module")
def encoder(processor_dir: Callable[[str], Path]) -> TaskEncoder:
    return TaskEncoder.from_pretrained(processor_dir("qwen2_5_vl"))


def raw(*messages: tuple[str, object], images: int = 0) -> dict[str, object]:
    file = io.BytesIO()
    Image.new("RGB", (451, 300), "red").save(file, format="PNG")
    content = {"messages": [{"role": role, "content": content} for role, content in messages]}
    return {
        "__key__": "k",
        "json": json.dumps(content).encode(),
        **{f"{number}.png": file.getvalue() for number in range(images)},
    }


def test_page(encoder: TaskEncoder) -> None:
    user = [{"type": "image", "image": "0.png"}, {"type": "text", "text": "What\x1b[31m is it?"}]
    page = inspect_sample(
        encoder,
        raw(
            ("system", "Be brief."),
            ("user", user),
            ("assistant", "Red."),
            ("user", "Sure?"),
            ("assistant", "Yes ✓"),
            images=1,
        ),
    )
    head, _, body = page.partition("\n\n")
    assert "sample 'k': " in head
    assert "1 media" in head
    assert "  image 0.png: 451×300 px → 176 tokens" in head
    assert body == (
        "<|im_start|>system\nBe brief.<|im_end|>\n"
        "<|im_start|>user\n<|vision_start|><|image_pad|>×176<|vision_end|>What\\x1b[31m is it?<|im_end|>\n"
        "<|im_start|>assistant\n⟦Red.<|im_end|>⟧\n"
        "<|im_start|>user\nSure?<|im_end|>\n"
        "<|im_start|>assistant\n⟦Yes ✓<|im_end|>⟧\n"
    )


def test_counts_are_of_tokens(encoder: TaskEncoder) -> None:
    page = inspect_sample(encoder, raw(("system", "a"), ("user", "b"), ("assistant", "c")))
    # <|im_start|> role \n text <|im_end|> \n, three times; "c" and its <|im_end|> are trained on
    assert page.startswith("sample 'k': 18 tokens, 2 trained on, 0 media\n")


def test_a_bad_sample_is_refused_as_the_encoder_does(encoder: TaskEncoder) -> None:
    with pytest.raises(SampleError, match="'k'"):
        inspect_sample(encoder, raw(("user", "b")))
