"""An encoded sample and its case in, what is wrong with the trained tokens out, told from decoded text alone."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any

from packloom.config import SampleConfig
from packloom.task_encoders.base import TaskEncoder
from packloom.testing.cases import MaskCase
from packloom.testing.traits import Traits
from packloom.types import EncodedSample

#: What decoding gives for a character of which some bytes are cut off.
_HALF = "\ufffd"
#: The template's own writing around an image may hold so many tokens.
_BESIDE = 3
#: A question is looked for in this many tokens before its answer.
_WINDOW = 64


@dataclass(frozen=True, kw_only=True)
class Run:
    """Consecutive trained tokens: ``ids[start:end]`` of the sample."""

    start: int
    end: int
    body: str  # the text, without the terminator
    terminator: str  # the last token if it is one that ends turns, else empty

    @property
    def text(self) -> str:
        """Body and terminator."""
        return self.body + self.terminator


@dataclass(frozen=True, kw_only=True)
class Reader:
    """Reads samples of one encoder with its tokenizer; knows nothing of how masks are made."""

    tokenizer: Any
    config: SampleConfig
    traits: Traits
    media_ids: frozenset[int]
    control_ids: frozenset[int]  # special tokens and media tokens
    terminators: Mapping[int, str]  # id → text

    @classmethod
    def of(cls, encoder: TaskEncoder, traits: Traits) -> Reader:
        """Terminators are those that the family declares; without any, the added tokens behind a rendered answer."""
        tokenizer, family = encoder.parts.tokenizer, encoder.family
        added = {index: token for index, token in tokenizer.added_tokens_decoder.items() if token.content.strip()}
        media = frozenset(tokenizer.convert_tokens_to_ids(list(family.media_tokens)))
        declared = {end for boundary in family.boundaries for end in boundary.ends}
        behind = {token.content for token in added.values() if token.content in traits.after}
        special = {
            index for index, token in added.items() if token.special and token.content not in family.payload_tokens
        }
        return cls(
            tokenizer=tokenizer,
            config=encoder.config,
            traits=traits,
            media_ids=media,
            control_ids=frozenset(special) | media,
            terminators={tokenizer.convert_tokens_to_ids(text): text for text in declared or behind},
        )

    def spans(self, sample: EncodedSample) -> Iterator[str]:
        """The text of each run of trained tokens."""
        return (run.text for run in self.runs(sample))

    def runs(self, sample: EncodedSample) -> list[Run]:
        """The runs of trained tokens, in order."""
        ids, found, start = sample.input_ids.tolist(), [], 0
        for trained, group in groupby(sample.loss_mask.tolist()):
            end = start + len(list(group))
            if trained:
                terminator = self.terminators.get(ids[end - 1], "")
                body = self.decode(ids[start : end - bool(terminator)])
                found.append(Run(start=start, end=end, body=body, terminator=terminator))
            start = end
        return found

    def decode(self, ids: Sequence[int]) -> str:
        """Tokens as text, control tokens included."""
        return str(self.tokenizer.decode(ids, skip_special_tokens=False, clean_up_tokenization_spaces=False))

    def control_tokens(self, sample: EncodedSample) -> Counter[str]:
        """How often each control token stands in the sample."""
        found = Counter(index for index in sample.input_ids.tolist() if index in self.control_ids)
        return Counter({self.decode([index]): count for index, count in found.items()})

    def faults(self, sample: EncodedSample, case: MaskCase) -> list[str]:
        """Everything that is wrong with the sample's trained tokens."""
        trained = sample.input_ids[sample.loss_mask].tolist()
        media = sorted(self.media_ids.intersection(trained))
        faults = [f"trained on the media token {self.decode([index])!r}" for index in media]
        if self.config.loss_on == "all_text":
            return [*faults, *self._all_text_faults(sample, case)]
        if case.supervised is None:
            return [*faults, f"was not refused, but trained on {[run.text for run in self.runs(sample)]}"]
        faults += self._run_faults(self.runs(sample), case, case.supervised)
        prompt = self.decode(sample.input_ids.tolist()) if case.tools else ""
        return [*faults, *(f"the tool {name!r} is not in the prompt" for name in case.tool_names if name not in prompt)]

    def _all_text_faults(self, sample: EncodedSample, case: MaskCase) -> Iterator[str]:
        """Every token is trained on but those of media, the template's own beside them, and what settings leave out."""
        ids, mask = sample.input_ids.tolist(), sample.loss_mask.tolist()
        left_out = "" if self.config.thinking == "supervise" else " ".join(case.reasoning)
        for place, (index, trained) in enumerate(zip(ids, mask, strict=True)):
            beside_media = self.media_ids.intersection(ids[max(0, place - _BESIDE) : place + _BESIDE + 1])
            ends = index in self.terminators and not self.config.train_terminator
            if not trained and not beside_media and not ends and self.decode([index]).strip() not in left_out:
                yield f"not trained on token {place}, {self.decode([index])!r}"
                return
        prompt, runs = self.decode(ids), [run.text for run in self.runs(sample)]
        for text in case.texts_beside(()):
            if text in prompt and not any(text in run for run in runs):
                yield f"not trained on {text!r}"

    def _run_faults(self, runs: list[Run], case: MaskCase, expected: Sequence[str | Sequence[str]]) -> Iterator[str]:
        if case.cut == "question":
            expected = expected[: len(runs)] if len(runs) < len(expected) else expected[:-1]
        if len(runs) != len(expected):
            yield f"{len(runs)} trained spans, expected {len(expected)}: {[run.text for run in runs]}"
            return
        for number, (run, wanted) in enumerate(zip(runs, expected, strict=True)):
            cut_short = case.cut == "answer" and number == len(runs) - 1
            if not self._closes(run, cut_short=cut_short):
                yield f"span {number} {run.text!r} ends on the wrong token"
            elif not self._says(run.body, wanted, case, cut_short=cut_short):
                yield f"span {number} is {run.text!r}, expected {wanted!r} and a terminator"

    def _closes(self, run: Run, *, cut_short: bool) -> bool:
        return bool(run.terminator) == (self.config.train_terminator and not cut_short)

    def _says(self, body: str, wanted: str | Sequence[str], case: MaskCase, *, cut_short: bool) -> bool:
        if isinstance(wanted, str):
            whole = self._renderings(wanted)
            return any(text.startswith(body.rstrip(_HALF)) for text in whole) if cut_short else body in whole
        dropped = [text for text in wanted if text in case.early_reasoning and text not in body]
        pieces = [text for text in wanted if text not in dropped]
        if len(pieces) == 1:
            return self._says(body, pieces[0], case, cut_short=cut_short)
        return _in_order(body, pieces) and not any(text in body for text in case.texts_beside(wanted))

    def _renderings(self, text: str) -> set[str]:
        """How an answer may come out: trimmed or not, in the template's white space (decoding may drop its first)."""
        trimmed = (text, text.strip(), text.lstrip(), text.rstrip())
        return {f"{lead}{form}{self.traits.trail}" for lead in (self.traits.lead, "") for form in trimmed}


def cut_length(whole: EncodedSample, case: MaskCase, reader: Reader) -> int:
    """The number of tokens at which this sample is cut in the middle of what ``case.cut`` names."""
    ids = whole.input_ids.tolist()
    if case.cut == "image":
        return max(place for place, index in enumerate(ids) if index in reader.media_ids)
    last = reader.runs(whole)[-1]
    if case.cut == "answer":
        return last.start + max(1, (last.end - last.start) // 2)
    end = last.start or len(ids)  # trained on from its very start: every token is
    first = max(0, end - _WINDOW)
    while end > first + 1 and case.last_question in reader.decode(ids[first:end]):
        end -= 1
    return end


def _in_order(body: str, pieces: Sequence[str]) -> bool:
    position = 0
    for piece in pieces:
        found = body.find(piece.strip(), position)
        if found < 0:
            return False
        position = found + len(piece.strip())
    return True
