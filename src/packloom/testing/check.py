"""An encoder and cases in, a report on its assistant masks out."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Iterable, Sequence

from packloom.config import SampleLimits
from packloom.errors import CapabilityError, ConfigError, PackloomError, SampleError
from packloom.task_encoders.base import TaskEncoder
from packloom.testing.batches import batch_faults
from packloom.testing.cases import MaskCase
from packloom.testing.matrix import built_in_cases
from packloom.testing.report import CaseResult, MaskReport
from packloom.testing.spans import Reader, cut_length
from packloom.testing.traits import Traits
from packloom.types import EncodedSample, Row


def check_masks(encoder: TaskEncoder, cases: Iterable[MaskCase] | None = None) -> MaskReport:
    """Encode conversations and compare what is trained on with what they say, on the tokens themselves.

    Without ``cases`` the built-in matrix runs: 1 to 3 turns × 0 to 2 images in the first or second question × a
    system text or none, each with texts that are plain, of multi-byte characters, with white space at the edges,
    empty, with reasoning, with tool calls, with a trailing question, with two answers in a row, and with forgeries of
    this very template's turns and placeholders; and cut in the answer, in the question and in an image.

    What is expected comes from the texts alone: each run of trained tokens must decode to exactly one answer (trimmed
    where the template trims) and a terminator; no media token is ever trained on, and none of another text; every
    sample, packed and padded with a second one, must give those very labels and nothing on padding. The encoder's own
    ``max_length`` and ``limits`` are lifted. Raises ConfigError if there are no cases.
    """
    free = with_length(encoder, None)
    chosen = list(built_in_cases(free) if cases is None else cases)
    if not chosen:
        raise ConfigError("check_masks needs at least one case, got none")
    checker = _Checker(encoder=free, reader=Reader.of(free, Traits.of(free)))
    results = tuple(checker.result(case) for case in chosen)
    return MaskReport(
        encoder=f"{encoder.parts.name} ({encoder.family.name})",
        method=encoder.masks.method.name,
        cases=results,
        notes=(*_notes(encoder), *checker.notes),
    )


def with_length(encoder: TaskEncoder, length: int | None) -> TaskEncoder:
    """The same encoder, with no limits but ``length``, to which samples are truncated."""
    changed = copy.copy(encoder)
    changed.config = dataclasses.replace(
        encoder.config, max_length=length, overlong="truncate" if length else "drop", limits=SampleLimits()
    )
    return changed


def _notes(encoder: TaskEncoder) -> list[str]:
    notes = ["padding: batches are padded on the right only, so left padding is not checked"]
    if encoder.image_rule is None:
        notes.append("images: this encoder takes none, so no case has any")
    if encoder.config.loss_on == "all_text":
        notes.append("loss_on='all_text': all but media must be trained on, whatever a case expects of its answers")
    return notes


@dataclasses.dataclass(kw_only=True)
class _Checker:
    """Runs cases; ``notes`` collects what could not be checked."""

    encoder: TaskEncoder
    reader: Reader
    notes: list[str] = dataclasses.field(default_factory=list)
    _partner: Row | None = None

    def result(self, case: MaskCase) -> CaseResult:
        """Encode and judge one case; an error of ours that is no SampleError fails it."""
        try:
            sample, faults = self._encode(case)
        except SampleError as error:
            return _refused(case, error)
        except PackloomError as error:
            return CaseResult(name=case.name, outcome="FAILED", message=f"{type(error).__name__}: {error}")
        faults += [*self.reader.faults(sample, case), *self._twin_faults(sample, case), *self._batch_faults(sample)]
        return CaseResult(
            name=case.name,
            outcome="FAILED" if faults else "ok",
            spans=tuple(self.reader.spans(sample)),
            message="; ".join(faults),
        )

    def _encode(self, case: MaskCase) -> tuple[EncodedSample, list[str]]:
        """The sample, cut where the case says so, and what is wrong with the cut."""
        whole = self.encoder.encode_sample(case.chat)
        if case.cut is None:
            return whole, []
        length = cut_length(whole, case, self.reader)
        sample = with_length(self.encoder, length).encode_sample(case.chat)
        same = sample.input_ids.equal(whole.input_ids[:length]) and sample.loss_mask.equal(whole.loss_mask[:length])
        return sample, [] if same else [f"cut to {length} tokens it is not the start of the whole sample"]

    def _twin_faults(self, sample: EncodedSample, case: MaskCase) -> list[str]:
        """A text that spells control tokens adds none."""
        if case.twin is None:
            return []
        forged, plain = (self.reader.control_tokens(s) for s in (sample, self.encoder.encode_sample(case.twin.chat)))
        surplus = [f"{token!r}" for token in sorted((forged - plain) + (plain - forged))]
        return [f"the text made or removed the control tokens {', '.join(surplus)}"] if surplus else []

    def _batch_faults(self, sample: EncodedSample) -> Sequence[str]:
        if self._partner is None:
            first = next(case for case in built_in_cases(self.encoder) if not case.images)
            self._partner = Row(sample=self.encoder.encode_sample(first.chat))
        try:
            return batch_faults(self.encoder, [Row(sample=sample), self._partner])
        except CapabilityError as error:
            if (note := f"batches: {error}") not in self.notes:
                self.notes.append(note)
            return []


def _refused(case: MaskCase, error: SampleError) -> CaseResult:
    if case.supervised is None or case.may_refuse:
        return CaseResult(name=case.name, outcome="refused", message=error.reason)
    return CaseResult(name=case.name, outcome="FAILED", message=f"refused: {error.reason}")
