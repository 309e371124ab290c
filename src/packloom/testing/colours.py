"""An encoded sample in, its tokens as coloured text out: trained on, control, media."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import groupby

from rich.text import Text

from packloom.task_encoders.base import TaskEncoder
from packloom.testing.spans import Reader
from packloom.testing.traits import Traits
from packloom.types import EncodedSample

#: Style by (control token, trained on); neighbouring tokens alternate between the two, so that their edges show.
STYLES = {
    (False, False): ("default", "dim"),
    (False, True): ("green", "green dim"),
    (True, False): ("cyan", "cyan"),
    (True, True): ("bold yellow", "bold yellow"),
}
LEGEND = "⟦green⟧: trained on · yellow: control token that is trained on · cyan: other control token"
OPEN, CLOSE = "⟦", "⟧"
_HALF = "\ufffd"


@dataclass(frozen=True, kw_only=True)
class Piece:
    """The smallest group of tokens that decodes to whole characters; ``count`` equal media tokens are one piece."""

    text: str
    control: bool
    trained: bool
    count: int = 1


def coloured(encoder: TaskEncoder, sample: EncodedSample) -> Text:
    """Every token of the sample; a run of one media token is written once with its length."""
    text = Text()
    trained = False
    for number, piece in enumerate(pieces(Reader.of(encoder, Traits.of(encoder)), sample)):
        if piece.trained != trained:
            text.append(OPEN if piece.trained else CLOSE)
            trained = piece.trained
        text.append(_visible(piece), style=STYLES[piece.control, piece.trained][number % 2])
    if trained:
        text.append(CLOSE)
    return text


def pieces(reader: Reader, sample: EncodedSample) -> Iterator[Piece]:
    """The sample's tokens in order; bytes of one character stay together."""
    ids, mask = sample.input_ids.tolist(), sample.loss_mask.tolist()
    keys = [(mask[place], index if index in reader.control_ids else None) for place, index in enumerate(ids)]
    place = 0
    for (trained, control), group in groupby(keys):
        end = place + len(list(group))
        if control is None:
            yield from _words(reader, ids[max(0, place - 1) : place], ids[place:end], trained)
        else:
            yield Piece(text=reader.decode([control]), control=True, trained=trained, count=end - place)
        place = end


def _words(reader: Reader, context: list[int], ids: list[int], trained: bool) -> Iterator[Piece]:
    """Ordinary tokens one by one; some tokenizers decode a blank only behind another token, so one is the context."""
    shown = len(reader.decode(context))
    for end in range(1, len(ids) + 1):
        text = reader.decode([*context, *ids[:end]])
        if len(text) > shown and (end == len(ids) or not text.endswith(_HALF)):
            yield Piece(text=text[shown:], control=False, trained=trained)
            shown = len(text)


def _visible(piece: Piece) -> str:
    letters = (
        "⏎\n" if letter == "\n" else letter if letter.isprintable() else letter.encode("unicode_escape").decode()
        for letter in piece.text
    )
    return "".join(letters) + (f"×{piece.count}" if piece.count > 1 else "")
