"""How audio is brought to what a model hears: one frozen dataclass, a part of SampleConfig."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

from packloom.config_fields import check_types, require

OtherRate = Literal["resample", "refuse"]
TooLong = Literal["refuse", "cut"]


@dataclass(frozen=True, kw_only=True)
class AudioConfig:
    """What is done with audio that is not as the model's own audio processor wants it."""

    other_rate: OtherRate = "resample"  # a sampling rate that is not the model's: brought to it, or refused
    too_long: TooLong = "refuse"  # longer than the processor takes, which would drop the rest: refused, or cut there

    def __post_init__(self) -> None:
        check_types(self)
        for name, known in (("other_rate", OtherRate), ("too_long", TooLong)):
            value = getattr(self, name)
            require(value in get_args(known), f"audio.{name} must be one of {get_args(known)}, got {value!r}")
