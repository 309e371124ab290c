"""The outcome of each case in, a report that a person or a program can read out."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any, Literal

Outcome = Literal["ok", "refused", "FAILED"]

_SEPARATOR = " · "


@dataclass(frozen=True, kw_only=True)
class CaseResult:
    """What came of one case; ``spans`` are the trained texts, ``message`` says why it was refused or failed."""

    name: str
    outcome: Outcome
    spans: tuple[str, ...] = ()
    message: str = ""


@dataclass(frozen=True, kw_only=True)
class Group:
    """All cases of one payload (and cut): how many came out how, and one of them as an example."""

    name: str
    counts: Counter[Outcome]
    example: CaseResult

    @property
    def shown(self) -> str:
        """The example's trained texts, or its message."""
        return printable(" | ".join(self.example.spans) if self.example.outcome == "ok" else self.example.message)


@dataclass(frozen=True, kw_only=True)
class MaskReport:
    """The outcome of every case of one encoder; ``str(report)`` is a table of it."""

    encoder: str
    method: str  # the step of the chain that finds the spans
    cases: tuple[CaseResult, ...]
    notes: tuple[str, ...] = ()

    @property
    def ok(self) -> bool:
        """Whether no case failed."""
        return not self.failed

    @property
    def failed(self) -> tuple[CaseResult, ...]:
        """The cases that failed."""
        return tuple(case for case in self.cases if case.outcome == "FAILED")

    @property
    def title(self) -> str:
        """One line: the encoder, the method, the counts."""
        counts = Counter(case.outcome for case in self.cases)
        numbers = ", ".join(f"{counts[outcome]} {outcome}" for outcome in ("ok", "refused", "FAILED"))
        return f"{self.encoder}, masks by {self.method}: {len(self.cases)} cases, {numbers}"

    def raise_if_failed(self) -> None:
        """Raise AssertionError with the report's table if a case failed."""
        if not self.ok:
            raise AssertionError(str(self))

    def groups(self) -> list[Group]:
        """The cases by payload and cut; a case without a structure in its name stands for itself."""
        members: dict[str, list[CaseResult]] = {}
        for case in self.cases:
            structure, separator, payload = case.name.partition(_SEPARATOR)
            members.setdefault(payload if separator else structure, []).append(case)
        return [
            Group(name=name, counts=Counter(case.outcome for case in cases), example=_worst(cases))
            for name, cases in members.items()
        ]

    def as_dict(self) -> dict[str, Any]:
        """Plain data for ``--json``."""
        cases = [asdict(case) for case in self.cases]
        return {"encoder": self.encoder, "method": self.method, "ok": self.ok, "cases": cases, "notes": self.notes}

    def __str__(self) -> str:
        return "\n".join(self._lines())

    def _lines(self) -> Iterator[str]:
        yield self.title
        groups = self.groups()
        width = max((len(group.name) for group in groups), default=0)
        yield f"{'':{width}}  {'ok':>4} {'refused':>8} {'FAILED':>7}"
        for group in groups:
            counts = group.counts
            numbers = f"{counts['ok']:>4} {counts['refused']:>8} {counts['FAILED']:>7}"
            yield f"{group.name:{width}}  {numbers}  {_short(group.shown)}"
        for case in self.failed:
            yield f"FAILED {case.name}: {case.message}"
        yield from (f"note: {note}" for note in self.notes)


def _worst(cases: list[CaseResult]) -> CaseResult:
    """The first failed case, else the first that came out well, else the first."""
    for outcome in ("FAILED", "ok"):
        if found := next((case for case in cases if case.outcome == outcome), None):
            return found
    return cases[0]


def _short(line: str, limit: int = 100) -> str:
    return line if len(line) <= limit else f"{line[: limit - 1]}…"


def printable(text: str) -> str:
    """Control characters spelled out: a text of a case must not steer the terminal."""
    return "".join(letter if letter.isprintable() else letter.encode("unicode_escape").decode() for letter in text)
