"""A raw sample and its encoder go in; what the model will read, with the trained-on text marked, comes out as text."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import groupby

from packloom.task_encoders.base import TaskEncoder
from packloom.types import ChatSample, EncodedMedia, EncodedSample, RawSample

#: The brackets around trained-on text.
OPEN, CLOSE = "⟦", "⟧"


@dataclass(frozen=True, kw_only=True, slots=True)
class Span:
    """Consecutive tokens that are all trained on, or all not, as text."""

    text: str
    trained: bool


def inspect_sample(encoder: TaskEncoder, raw: RawSample | ChatSample) -> str:
    """A page of plain text: counts, a line per medium, then every token, trained-on text between ``⟦`` and ``⟧``.

    The line of a video names its frames and their times.
    A run of one media token is written once with its length, ``<|image_pad|>×176``. The marks stand around the very
    tokens that are trained on, before any shift of labels. Raises SampleError for a bad sample, as the encoder does.
    """
    sample = encoder.encode_sample(raw)
    body = "".join(f"{OPEN}{span.text}{CLOSE}" if span.trained else span.text for span in spans(encoder, sample))
    return f"{describe(sample)}\n\n{body.rstrip()}\n"


def describe(sample: EncodedSample) -> str:
    """The counts of a sample, and the size and tokens of each medium."""
    trained = int(sample.loss_mask.sum())
    lines = [f"sample {sample.key!r}: {sample.num_tokens} tokens, {trained} trained on, {len(sample.media)} media"]
    for item in sample.media:
        lines.append(f"  {item.media.kind} {item.media.name}: {_size(item)}{_times(item)} → {item.num_tokens} tokens")
    return "\n".join(map(printable, lines))


def _size(item: EncodedMedia) -> str:
    if item.sound is not None:
        return f"{item.sound.seconds:.2f} s at {item.sound.rate} Hz"
    return f"{item.width}×{item.height} px"


def _times(item: EncodedMedia) -> str:
    """Of a video: which frames are taken, and when each is shown."""
    if item.frames is None:
        return ""
    shown = zip(item.frames.indices, item.frames.seconds, strict=True)
    return ", frames " + " ".join(f"{index}@{second:.2f}s" for index, second in shown)


def spans(encoder: TaskEncoder, sample: EncodedSample) -> Iterator[Span]:
    """The sample's tokens as text, in order, split where the loss mask changes."""
    pairs = zip(sample.input_ids.tolist(), sample.loss_mask.tolist(), strict=True)
    for trained, group in groupby(pairs, key=lambda pair: pair[1]):
        yield Span(text=_text(encoder, [index for index, _ in group]), trained=trained)


def _text(encoder: TaskEncoder, ids: list[int]) -> str:
    """The ids as text; a run of a media token is written once with its length."""
    tokenizer, media = encoder.parts.tokenizer, set(encoder.media_ids.tolist())
    pieces = []
    for is_media, group in groupby(ids, key=media.__contains__):
        if not is_media:
            pieces.append(tokenizer.decode(list(group), skip_special_tokens=False, clean_up_tokenization_spaces=False))
            continue
        for index, run in groupby(group):
            length = len(list(run))
            pieces.append(tokenizer.convert_ids_to_tokens(index) + (f"×{length}" if length > 1 else ""))
    return printable("".join(pieces))


def printable(text: str) -> str:
    """The text with control characters spelled out: text of a data set must not steer the terminal."""
    return "".join(letter if letter.isprintable() or letter == "\n" else _spelled(letter) for letter in text)


def _spelled(letter: str) -> str:
    return letter.encode("unicode_escape").decode()
