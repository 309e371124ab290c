"""The error policy: bad samples are counted, recorded and bounded; bugs pass through untouched."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from packloom.datasets import ErrorPolicy, Quarantine, SkipRecord
from packloom.errors import ConfigError, CookError, ReadError, TooManyErrors


def cook_error(key: str = "a") -> CookError:
    return CookError("no image", key=key, code="cook.image_count")


def record(key: str, reason: str = "no image") -> SkipRecord:
    return SkipRecord(key=key, source="s.tar", stage="encode", code="cook.image_count", reason=reason)


def test_skips_are_counted_by_source_and_code() -> None:
    policy = ErrorPolicy()
    assert policy.skip(cook_error(), stage="encode", source="s.tar") == record("a")
    policy.skip(cook_error("b"), stage="encode", source="s.tar")
    policy.skip(ReadError("cut", key="c", code="read.truncated"), stage="read", source="t.tar")
    assert policy.counts == {("s.tar", "cook.image_count"): 2, ("t.tar", "read.truncated"): 1}
    assert [item.key for item in policy.take_records()] == ["a", "b", "c"]
    assert policy.take_records() == []


def test_too_many_in_a_row_end_the_run_with_what_how_many_and_what_next() -> None:
    policy = ErrorPolicy(max_consecutive=3)
    policy.skip(ReadError("cut", key="x", code="read.truncated"), stage="encode")
    policy.skip(cook_error(), stage="encode")
    with pytest.raises(TooManyErrors) as caught:
        policy.skip(cook_error("last"), stage="encode", source="s.tar")
    assert str(caught.value) == (
        "3 samples in a row failed in stage 'encode', most often with cook.image_count (2 times); the last one was"
        " sample 'last' of s.tar: no image. Mend the data or the settings (the quarantine file, if one is set, names"
        " each sample), or raise max_consecutive_errors"
    )
    assert [item.key for item in policy.take_records()] == ["x", "a", "last"]


def test_a_success_ends_the_run_of_its_own_stage_only() -> None:
    policy = ErrorPolicy(max_consecutive=2)
    policy.skip(cook_error(), stage="media")
    policy.passed("encode")  # samples that wait for their media say nothing about media
    policy.skip(cook_error(), stage="encode")
    policy.passed("encode")
    policy.skip(cook_error(), stage="encode")
    with pytest.raises(TooManyErrors, match="2 samples in a row failed in stage 'media'"):
        policy.skip(cook_error(), stage="media")


def test_on_error_raise_gives_the_error_itself_and_still_records_it() -> None:
    policy, error = ErrorPolicy(on_error="raise"), cook_error()
    with pytest.raises(CookError) as caught:
        policy.skip(error, stage="encode", source="s.tar")
    assert caught.value is error
    assert policy.take_records() == [record("a")]


@pytest.mark.parametrize("settings", [{"on_error": "ignore"}, {"max_consecutive": 0}])
def test_settings_that_cannot_work(settings: dict[str, object]) -> None:
    with pytest.raises(ConfigError):
        ErrorPolicy(**settings)


def test_the_quarantine_file_is_appended_line_by_line(tmp_path: Path) -> None:
    path = tmp_path / "new" / "bad.jsonl"
    for key in ("a", "ü\udce9"):  # the second from a file name that is no UTF-8
        quarantine = Quarantine(path)
        quarantine.write(record(key, 'two\nlines "quoted"'))
        lines = path.read_text(encoding="utf-8").splitlines()
        assert json.loads(lines[-1]) == {
            "key": key, "source": "s.tar", "stage": "encode", "code": "cook.image_count",
            "reason": 'two\nlines "quoted"', "epoch": 0, "offset": None, "dataset": "",
        }  # fmt: skip
        quarantine.close()
    assert len(lines) == 2
    quarantine.close()


def test_a_quarantine_file_that_cannot_be_written(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot be written"):
        Quarantine(tmp_path)
