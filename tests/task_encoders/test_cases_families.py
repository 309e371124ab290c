"""Every row of the shared cases through every family's real processor, with the outcome that it must have."""

from __future__ import annotations

import itertools
from typing import Any

import pytest

from packloom import TaskEncoder
from packloom.errors import SampleError
from packloom.types import EncodedSample

FAMILIES = {
    "gemma3": "<end_of_turn>",
    "gemma4": "<turn|>",
    "glm46v": "<|endoftext|>",
    "glm4v": "<|endoftext|>",
    "internvl3": "<|im_end|>",
    "kimi_k25": "<|im_end|>",
    "llava": "</s>",
    "llava_next": "</s>",
    "llava_onevision": "<|im_end|>",
    "ministral3": "</s>",
    "mistral3": "</s>",
    "pixtral": "</s>",
    "qwen2_5_vl": "<|im_end|>",
    "qwen2_vl": "<|im_end|>",
    "qwen3_5": "<|im_end|>",
    "qwen3_vl": "<|im_end|>",
    "smolvlm": "<end_of_utterance>",
}
NEEDS_TORCHVISION = {"kimi_k25", "ministral3", "mistral3", "pixtral"}
#: GLM turns end with the mark of the next role.
MID_ENDS = {"glm46v": ("<|user|>", "<|observation|>"), "glm4v": ("<|user|>",)}
#: These write an answer's first word with the space in front of it.
LEADING_SPACE = {"smolvlm"}
#: These trim texts.
TRIMMING = {"gemma3", "gemma4", "glm46v", "qwen3_5"}


def spans(sample: EncodedSample, tokenizer: Any) -> list[str]:
    tokens = zip(sample.input_ids.tolist(), sample.loss_mask.tolist(), strict=True)
    groups = itertools.groupby(tokens, key=lambda pair: pair[1])
    return [tokenizer.decode([token for token, _ in group]) for trained, group in groups if trained]


def outcome(encoder: TaskEncoder, row: dict[str, Any]) -> tuple[EncodedSample | None, SampleError | None]:
    try:
        return encoder.encode_sample(row), None
    except SampleError as error:
        return None, error


def without_end(span: str, ends: tuple[str, ...]) -> str:
    [end] = [end for end in ends if span.endswith(end)]
    return span.removesuffix(end)


@pytest.mark.parametrize("policy", ["refuse", "neutralise"])
@pytest.mark.parametrize("family", FAMILIES)
def test_shared_conversations(family, policy, cases, encoder_of, shared_dir):
    if family in NEEDS_TORCHVISION:
        pytest.importorskip("torchvision", reason="this family's image processor needs torchvision")
    picture = (shared_dir / "cases/images/hopper_orientation_6.jpg").read_bytes()
    encoder = encoder_of(family, control_tokens=policy)
    seen = dict.fromkeys(("ok", "refused", "ok-or-refused"), 0)
    accepted = 0
    for case in cases:
        if case["outcome"] not in seen or case["id"] == "image-past-max-length":
            continue
        images = {f"{index}.jpg": picture for index in range(case["images"])}
        row = {"__key__": case["id"], "json": {"messages": case["messages"], "tools": case.get("tools")}, **images}
        sample, error = outcome(encoder, row)
        seen[case["outcome"]] += 1
        if error is not None:
            assert case["outcome"] != "ok", f"{case['id']}: {error}"
            assert error.key == case["id"]
            continue
        assert case["outcome"] != "refused", case["id"]
        accepted += case["outcome"] == "ok-or-refused"
        found = [
            without_end(s, (FAMILIES[family], *MID_ENDS.get(family, ())))
            for s in spans(sample, encoder.parts.tokenizer)
        ]
        if family in LEADING_SPACE:
            found = [text.removeprefix(" ") for text in found]
        expected = [text.strip() if family in TRIMMING else text for text in case["supervised"]]
        assert found == expected, case["id"]
    assert seen == {"ok": 12, "refused": 3, "ok-or-refused": 11}
    assert accepted >= 3
