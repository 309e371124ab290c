"""The settings of packing enter, checked: what a pack holds, what waits for one, and what a step with it costs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

from packloom.config_fields import check_types, require

Balance = Literal["off", "cost"]


@dataclass(frozen=True, kw_only=True)
class PackingConfig:
    """How samples share a pack. Packing is on exactly when the loader's layout is ``"packed"``."""

    pack_length: int | None = None  # T's budget in tokens; None takes the encoder's max_length
    max_patches: int | None = None  # vision patches per pack
    open_packs: int = 16  # packs' worth of samples that may wait; 32 or more fill better where samples are long
    buffer_size: int = 64  # further samples that may wait, to choose from
    max_wait: int = 2000  # no sample waits for more than this many further samples
    segment_multiple: int = 1  # each segment is padded to a multiple of this, and of what DistributionConfig asks for
    pad_to_length: bool = False  # every pack exactly pack_length long
    balance: Balance = "off"  # "cost": the packs of a step cost alike, whatever the number of ranks; see docs/plan.md
    balance_window: int = 192  # packs of all ranks that are ordered anew at a time, rounded up to whole lanes
    cost_linear: float = 1.0  # what a pack costs: per token, per squared length of each sample, per vision patch
    cost_attention: float = 2e-5
    cost_vision: float = 0.1

    def __post_init__(self) -> None:
        check_types(self)
        require(self.balance in get_args(Balance), f"balance must be 'off' or 'cost', got {self.balance!r}")
        for name in ("pack_length", "max_patches", "open_packs", "max_wait", "segment_multiple", "balance_window"):
            value = getattr(self, name)
            require(value is None or value > 0, f"packing.{name} must be positive, got {value}")
        costs = (self.cost_linear, self.cost_attention, self.cost_vision)
        require(
            min(costs) >= 0 < max(costs), f"the terms of a pack's cost must not be negative, nor all zero, got {costs}"
        )
        require(self.buffer_size >= 0, f"packing.buffer_size must not be negative, got {self.buffer_size}")
        if self.pack_length is not None:
            require(
                self.pack_length % self.segment_multiple == 0,
                f"pack_length {self.pack_length} is not a multiple of segment_multiple {self.segment_multiple}",
            )
