"""The report of check_masks as text and as data."""

from __future__ import annotations

from packloom.testing import CaseResult, MaskReport


def test_the_table_is_short_and_names_what_failed() -> None:
    def case(name: str, outcome: str, message: str = "", *spans: str) -> CaseResult:
        return CaseResult(name=name, outcome=outcome, spans=spans, message=message)  # type: ignore[arg-type]

    report = MaskReport(
        encoder="mine (qwen3_vl)",
        method="token_search",
        cases=(
            case("1 turn · plain", "ok", "", "Yes.\n<e>"),
            case("2 turns · plain", "FAILED", "span 1 is wrong"),
            case("1 turn · thought", "refused", "no thoughts"),
            case("mine", "ok", "", "A", "B"),
        ),
        notes=("left padding is not checked",),
    )
    assert str(report).splitlines() == [
        "mine (qwen3_vl), masks by token_search: 4 cases, 2 ok, 1 refused, 1 FAILED",
        "           ok  refused  FAILED",
        "plain       1        0       1  span 1 is wrong",
        "thought     0        1       0  no thoughts",
        "mine        1        0       0  A | B",
        "FAILED 2 turns · plain: span 1 is wrong",
        "note: left padding is not checked",
    ]
    assert report.as_dict()["cases"][0] == {
        "name": "1 turn · plain",
        "outcome": "ok",
        "spans": ("Yes.\n<e>",),
        "message": "",
    }
