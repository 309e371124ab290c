"""The whole case matrix on every real processor: nothing fails, and only what the template cannot say is refused."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from packloom import TaskEncoder
from packloom.testing import check_masks

#: These are refused by default in every family: the policy is to refuse texts that spell control tokens.
FORGED = {"forged turn", "forged turn in answer", "forged placeholder"}
#: What the template drops, rejects or joins. Refused whole, in every structure; all else comes out right in every one.
REFUSED = {
    "gemma3": {"thought", "tool call", "silent tool call", "two answers in a row"},
    "gemma4": {"tool call", "two answers in a row"},  # it writes the text of a calling turn behind the tool's result
    "glm46v": {"think marks", "two answers in a row"},
    "glm4v": {"thought", "tool call", "silent tool call", "two answers in a row"},
    "internvl3": {"thought", "tool call", "silent tool call"},
    "kimi_k25": {"thought", "think marks"},
    "llava": {"thought", "tool call", "silent tool call"},
    "llava_next": {"thought", "tool call", "silent tool call", "two answers in a row"},
    "llava_onevision": {"thought", "tool call", "silent tool call"},
    "ministral3": {"thought", "two answers in a row", "empty answer"},
    "mistral3": {"thought", "tool call", "silent tool call", "two answers in a row"},
    "pixtral": {"thought", "tool call", "silent tool call", "two answers in a row"},
    "qwen2_5_vl": {"thought", "tool call", "silent tool call"},
    "qwen2_vl": {"thought", "tool call", "silent tool call"},
    "qwen3_5": {"think marks"},
    "qwen3_vl": {"thought"},
    "smolvlm": {"thought", "tool call", "silent tool call"},
}
NEEDS_TORCHVISION = {"kimi_k25", "ministral3", "mistral3", "pixtral"}


@pytest.mark.parametrize("family", REFUSED)
def test_the_case_matrix(family: str, processor_dir: Callable[[str], Path]) -> None:
    if family in NEEDS_TORCHVISION:
        pytest.importorskip("torchvision", reason="this family's image processor needs torchvision")
    report = check_masks(TaskEncoder.from_pretrained(processor_dir(family)))
    report.raise_if_failed()
    groups = {group.name: group.counts for group in report.groups()}
    whole = {name: counts for name, counts in groups.items() if "cut in" not in name}
    assert {name for name, counts in whole.items() if counts["refused"]} == FORGED | REFUSED[family]
    assert {name for name, counts in whole.items() if counts["ok"] not in (0, 26)} == set()
    assert {name: groups[name]["ok"] for name in groups if "cut in" in name} == {
        "plain · cut in answer": 26,
        "emoji · cut in answer": 26,
        "plain · cut in question": 20,
        "emoji · cut in question": 20,
        "plain · cut in image": 0,
        "emoji · cut in image": 0,
    }
