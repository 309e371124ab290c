"""Golden files: what they hold, what counts as a change, and how a change is told."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from pathlib import Path

import pytest
from transformers import AutoTokenizer

from packloom import TaskEncoder
from packloom.errors import ConfigError
from packloom.testing import (
    MaskCase,
    Snapshot,
    compare_snapshots,
    facts_that_differ,
    read_snapshot,
    take_snapshot,
    write_snapshot,
)
from packloom.testing.snapshot import CaseRecord

CASE = MaskCase(
    name="mine",
    messages=[{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "? ? ? ? ?"}],
    supervised=["x"],
)
TOKENS = {"1": "Hi", "2": "there", "3": "<e>", "4": "<p>"}


@pytest.fixture(scope="module")
def encoder(processor_dir: Callable[[str], Path]) -> TaskEncoder:
    tokenizer = AutoTokenizer.from_pretrained(processor_dir("qwen3_vl"))
    return TaskEncoder.from_processor(tokenizer, model_type="qwen3_vl")


def golden(**cases: CaseRecord) -> Snapshot:
    return Snapshot(
        format=1,
        family="f",
        method="token_search",
        template="0" * 64,
        versions={"packloom": "1"},
        settings={"loss_on": "all_turns"},
        cases=cases,
        tokens=TOKENS,
    )


def test_ids_and_ranges_of_a_case(encoder: TaskEncoder) -> None:
    snapshot = take_snapshot(encoder, [CASE])
    ids = [151644, 872, 198, 13048, 151645, 198, 151644, 77091, 198, 30, [937, 4], 151645, 198]
    assert snapshot["cases"] == {"mine": {"ids": ids, "trained": [[9, 15]]}}
    assert snapshot["tokens"]["151645"] == "<|im_end|>"
    assert (snapshot["family"], snapshot["method"]) == ("qwen3_vl", "token_search")
    assert snapshot["settings"]["train_terminator"] is True


def test_a_file_holds_the_snapshot(encoder: TaskEncoder, tmp_path: Path) -> None:
    snapshot = take_snapshot(encoder)
    path = tmp_path / "golden.json"
    write_snapshot(snapshot, path)
    assert read_snapshot(path) == snapshot
    assert compare_snapshots(read_snapshot(path), take_snapshot(encoder)) == []
    text = path.read_text(encoding="utf-8")
    assert len(text.splitlines()) < len(snapshot["cases"]) + len(snapshot["tokens"]) + 25  # a line each, for reviews
    assert '"3 turns, system · plain": {"ids": [' in text
    assert len(text) < 60_000


@pytest.mark.parametrize(
    ("before", "after", "told"),
    [
        (
            {"ids": [1, 2, 3], "trained": [[1, 3]]},
            {"ids": [1, 2, 3], "trained": [[1, 2]]},
            "a: token 2: '<e>' (3, trained) → '<e>' (3, not trained)",
        ),
        (
            {"ids": [1, 2, 3], "trained": [[1, 3]]},
            {"ids": [1, 3], "trained": [[1, 2]]},
            "a: token 1: 'there' (2, trained) → nothing",
        ),
        (
            {"ids": [1, 3], "trained": []},
            {"ids": [1, [4, 9], 3], "trained": []},
            "a: token 1: nothing → '<p>'×9 (4, not trained)",
        ),
        (
            {"ids": [1], "trained": []},
            {"refused": "mask.merged_edge"},
            "a: token 0: 1 tokens → refused (mask.merged_edge)",
        ),
        ({"refused": "mask.a"}, {"refused": "mask.b"}, "a: token 0: refused (mask.a) → refused (mask.b)"),
    ],
)
def test_a_change_is_named(before: CaseRecord, after: CaseRecord, told: str) -> None:
    [change] = compare_snapshots(golden(a=before, same=before), golden(a=after, same=before))
    assert str(change) == told
    assert compare_snapshots(golden(a=before), golden(a=before)) == []


def test_cases_that_came_or_went_are_changes() -> None:
    record: CaseRecord = {"ids": [1], "trained": []}
    changes = compare_snapshots(golden(old=record), golden(new=record))
    assert [(change.case, change.before, change.after) for change in changes] == [
        ("old", "1 tokens", "no such case"),
        ("new", "no such case", "1 tokens"),
    ]


def test_what_may_explain_a_change() -> None:
    before, after = golden(), golden()
    after["template"], after["method"] = "1" * 64, "inferred_boundaries"
    after["versions"] = {"packloom": "2", "tokenizers": "3"}
    assert facts_that_differ(before, after) == [
        "chat template: 000000000000 → 111111111111",
        "method: token_search → inferred_boundaries",
        "packloom: 1 → 2",
        "tokenizers: None → 3",
    ]
    assert facts_that_differ(before, copy.deepcopy(before)) == []


def test_a_dated_template_gives_the_same_snapshot_every_day(processor_dir: Callable[[str], Path]) -> None:
    tokenizer = AutoTokenizer.from_pretrained(processor_dir("mistral3"))
    encoder = TaskEncoder.from_processor(tokenizer, model_type="mistral3")
    snapshot = take_snapshot(encoder)
    ids = snapshot["cases"]["1 turn · plain"]["ids"]
    text = tokenizer.decode([i for run in ids for i in ([run[0]] * run[1] if isinstance(run, list) else [run])])
    assert "The current date is 2000-01-01." in text
    assert encoder.encode_sample(CASE.chat).num_tokens > 100  # and the encoder itself still writes today's
    assert "2000-01-01" not in encoder.template.render(CASE.chat)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("not json", "is no snapshot"),
        ("[]", "it needs the keys format, family"),
        ('{"cases": {}}', "it needs the keys format, family"),
        (json.dumps({**golden(), "format": 99}), "snapshot format 99; this packloom reads 1"),
    ],
)
def test_a_file_that_is_no_snapshot_is_refused(text: str, message: str, tmp_path: Path) -> None:
    path = tmp_path / "golden.json"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(ConfigError, match=message):
        read_snapshot(path)


def test_cases_of_one_name_are_refused(encoder: TaskEncoder) -> None:
    with pytest.raises(ConfigError, match="different names"):
        take_snapshot(encoder, [CASE, CASE])
