"""The one rule for lengths: parallel and precision settings go in, the multiple that a segment must have comes out."""

from __future__ import annotations

import math
from typing import Literal

from packloom.errors import ConfigError

#: Tokens that FP8 kernels want T (packed) or S (padded) to be a multiple of; MXFP8 scales blocks of 32.
FP8_MULTIPLES = {"fp8": 16, "mxfp8": 32}


def segment_multiple(
    *, cp: int = 1, tp: int = 1, sequence_parallel: bool = False, fp8: Literal["fp8", "mxfp8"] | None = None
) -> int:
    """The multiple that each packed segment, or the padded S, must have.

    The least common multiple of 2·cp (context parallelism cuts a segment into two chunks per rank), cp·tp (sequence
    parallelism, with tp > 1) and ``FP8_MULTIPLES[fp8]``. The FP8 rule concerns only the whole T, which is a multiple
    when each segment is; to pay for it once per pack, leave ``fp8`` out here and give ``FP8_MULTIPLES[fp8]`` to the
    collate as ``pad_to_multiple_of``.
    """
    if cp < 1 or tp < 1:
        raise ConfigError(f"cp and tp count ranks and must be at least 1, got cp={cp}, tp={tp}")
    if fp8 is not None and fp8 not in FP8_MULTIPLES:
        raise ConfigError(f"fp8 must be one of {', '.join(FP8_MULTIPLES)} or None, got {fp8!r}")
    return math.lcm(
        2 * cp if cp > 1 else 1,
        cp * tp if sequence_parallel and tp > 1 else 1,
        1 if fp8 is None else FP8_MULTIPLES[fp8],
    )
