"""An encoder and cases in, a golden file of their tokens and masks out; two of those in, the changed tokens out."""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher
from importlib.metadata import version
from itertools import groupby
from pathlib import Path
from typing import Any, TypedDict

from packloom.datasets.files import write_file
from packloom.errors import ConfigError, SampleError
from packloom.task_encoders.base import TaskEncoder
from packloom.testing.cases import MaskCase
from packloom.testing.check import with_length
from packloom.testing.matrix import golden_cases

FORMAT = 1
#: From this length on, a run of one token is written as ``[id, count]``.
_SHORTEST_RUN = 4
#: Templates that write today's date would change every day: in a snapshot each date is this one.
_FIXED_DATE = "{% macro strftime_now(format) %}2000-01-01{% endmacro %}{{ '' }}"


@dataclass(frozen=True, kw_only=True)
class Run:
    """``count`` equal tokens in a row."""

    index: int
    trained: bool
    count: int

    def told(self, texts: Mapping[str, str]) -> str:
        """Text, id, and whether it is trained on."""
        text = repr(texts.get(str(self.index), "?")) + f"×{self.count}" * (self.count > 1)
        return f"{text} ({self.index}, {'trained' if self.trained else 'not trained'})"


class CaseRecord(TypedDict, total=False):
    """One case: its tokens and the ranges ``[start, end)`` that are trained on, or the code of its refusal."""

    ids: list[int | list[int]]
    trained: list[list[int]]
    refused: str


class Snapshot(TypedDict):
    """What a golden file holds; ``tokens`` gives the text of every id, so that a change can be told from both sides."""

    format: int
    family: str
    method: str
    template: str  # sha256 of the chat template
    versions: dict[str, str]
    settings: dict[str, Any]
    cases: dict[str, CaseRecord]
    tokens: dict[str, str]


@dataclass(frozen=True, kw_only=True)
class Change:
    """The first change in one case: at ``position`` the tokens ``before`` became ``after``; ``more`` places follow."""

    case: str
    position: int
    before: str
    after: str
    more: int = 0

    def __str__(self) -> str:
        rest = f"; and {self.more} more place{'s' * (self.more > 1)}" if self.more else ""
        return f"{self.case}: token {self.position}: {self.before} → {self.after}{rest}"


def take_snapshot(encoder: TaskEncoder, cases: Iterable[MaskCase] | None = None) -> Snapshot:
    """Encode the cases (default: a part of the built-in matrix) and keep their tokens and masks.

    Raises ConfigError if two cases share a name.
    """
    fixed = with_length(_with_fixed_date(encoder), None)
    chosen = list(golden_cases(fixed) if cases is None else cases)
    records = {case.name: _record(fixed, case) for case in chosen}
    if len(records) != len(chosen):
        raise ConfigError("the cases of a snapshot need different names")
    used = sorted({run.index for record in records.values() for run in _runs(record)})
    config = encoder.config
    return Snapshot(
        format=FORMAT,
        family=encoder.family.name,
        method=encoder.masks.method.name,
        template=hashlib.sha256(encoder.parts.chat_template.encode()).hexdigest(),
        versions={name: version(name) for name in ("packloom", "transformers", "tokenizers")},
        settings={
            name: getattr(config, name) for name in ("loss_on", "thinking", "control_tokens", "train_terminator")
        },
        cases=records,
        tokens={str(index): encoder.parts.tokenizer.convert_ids_to_tokens(index) for index in used},
    )


def write_snapshot(snapshot: Snapshot, path: str | Path) -> None:
    """Write a golden file, at once, with one line per case and per token. Raises OSError."""
    lines = [
        f" {json.dumps(name)}: {json.dumps(value, ensure_ascii=False)}"
        for name, value in snapshot.items()
        if not isinstance(value, dict)
    ]
    for name in ("versions", "settings", "cases", "tokens"):
        entries = ",\n".join(
            f"  {json.dumps(key, ensure_ascii=False)}: {json.dumps(value, ensure_ascii=False)}"
            for key, value in snapshot[name].items()
        )
        lines.append(f" {json.dumps(name)}: {{\n{entries}\n }}")
    write_file(str(path), ("{\n" + ",\n".join(lines) + "\n}\n").encode())


def read_snapshot(path: str | Path) -> Snapshot:
    """Read a golden file; raises ConfigError for one that is none, or of another format."""
    try:
        data = json.loads(Path(path).read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"cannot read the snapshot {path}: {error.strerror}") from error
    except ValueError as error:
        raise ConfigError(f"{path} is no snapshot: {error}") from error
    if not isinstance(data, dict) or set(data) != set(Snapshot.__annotations__):
        raise ConfigError(f"{path} is no snapshot: it needs the keys {', '.join(Snapshot.__annotations__)}")
    if data["format"] != FORMAT:
        raise ConfigError(
            f"{path} has the snapshot format {data['format']}; this packloom reads {FORMAT}: take it anew"
        )
    snapshot: Snapshot = data  # type: ignore[assignment]
    return snapshot


def compare_snapshots(before: Snapshot, after: Snapshot) -> list[Change]:
    """Every case whose tokens or mask changed, with the first place where they differ; cases that came or went."""
    changes = []
    for name in [*before["cases"], *(name for name in after["cases"] if name not in before["cases"])]:
        old, new = before["cases"].get(name), after["cases"].get(name)
        if old == new:
            continue
        if old is None or new is None or "refused" in old or "refused" in new:
            told = (_outcome(record) for record in (old, new))
            changes.append(Change(case=name, position=0, before=next(told), after=next(told)))
        else:
            changes.append(_difference(name, (old, before["tokens"]), (new, after["tokens"])))
    return changes


def facts_that_differ(before: Snapshot, after: Snapshot) -> list[str]:
    """What else differs and may explain a change: template, method, settings, versions."""
    differences = []
    if before["template"] != after["template"]:
        differences.append(f"chat template: {before['template'][:12]} → {after['template'][:12]}")
    if before["method"] != after["method"]:
        differences.append(f"method: {before['method']} → {after['method']}")
    for name in ("settings", "versions"):
        old, new = before[name], after[name]
        differences += [
            f"{key}: {old.get(key)} → {new.get(key)}" for key in {**old, **new} if old.get(key) != new.get(key)
        ]
    return differences


def _with_fixed_date(encoder: TaskEncoder) -> TaskEncoder:
    template = encoder.parts.chat_template
    if "strftime_now" not in template:
        return encoder
    parts = dataclasses.replace(encoder.parts, chat_template=_FIXED_DATE + template)
    return type(encoder)(parts, config=encoder.config, cooker=encoder.cooker)


def _record(encoder: TaskEncoder, case: MaskCase) -> CaseRecord:
    try:
        sample = encoder.encode_sample(case.chat)
    except SampleError as error:
        return CaseRecord(refused=error.code)
    ids: list[int | list[int]] = []
    trained: list[list[int]] = []
    place = 0
    for (index, yes), group in groupby(zip(sample.input_ids.tolist(), sample.loss_mask.tolist(), strict=True)):
        count = len(list(group))
        ids += [[index, count]] if count >= _SHORTEST_RUN else [index] * count
        if yes and trained and trained[-1][1] == place:
            trained[-1][1] += count
        elif yes:
            trained.append([place, place + count])
        place += count
    return CaseRecord(ids=ids, trained=trained)


def _runs(record: CaseRecord) -> list[Run]:
    """The record's tokens in order; a run of equal ones is all trained on, or all not."""
    runs, place = [], 0
    for entry in record.get("ids", []):
        index, count = entry if isinstance(entry, list) else (entry, 1)
        yes = any(start <= place < end for start, end in record.get("trained", []))
        runs.append(Run(index=index, trained=yes, count=count))
        place += count
    return runs


def _difference(
    name: str, before: tuple[CaseRecord, Mapping[str, str]], after: tuple[CaseRecord, Mapping[str, str]]
) -> Change:
    old, new = _runs(before[0]), _runs(after[0])
    opcodes = SequenceMatcher(a=old, b=new, autojunk=False).get_opcodes()
    places = [opcode[1:] for opcode in opcodes if opcode[0] != "equal"]
    start, end, new_start, new_end = places[0]
    return Change(
        case=name,
        position=sum(run.count for run in old[:start]),
        before=_told(old[start:end], before[1]),
        after=_told(new[new_start:new_end], after[1]),
        more=len(places) - 1,
    )


def _told(runs: Sequence[Run], texts: Mapping[str, str], limit: int = 6) -> str:
    """``'Hello' (9707, trained)`` and so on."""
    shown = [run.told(texts) for run in runs[:limit]]
    return " ".join([*shown, f"and {len(runs) - limit} more"] if len(runs) > limit else shown) or "nothing"


def _outcome(record: CaseRecord | None) -> str:
    if record is None:
        return "no such case"
    return (
        f"refused ({record['refused']})" if "refused" in record else f"{sum(run.count for run in _runs(record))} tokens"
    )
