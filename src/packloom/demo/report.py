"""A finished demo goes in; its numbers come out as plain data and as a table."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from rich.table import Table

from packloom.demo.train import Step

#: A single step's loss jumps about: the first and last loss are means over this many steps.
LOSS_WINDOW = 3


@dataclass(frozen=True, kw_only=True)
class DemoReport:
    """What the demo did."""

    processor: str
    shards: str
    pack_length: int
    steps: tuple[Step, ...]
    skipped: Mapping[str, int]  # reason code → number of samples

    @property
    def num_samples(self) -> int:
        """Samples that were trained on."""
        return sum(step.num_samples for step in self.steps)

    @property
    def num_tokens(self) -> int:
        """Tokens that were trained with, media included, padding not."""
        return sum(step.num_tokens for step in self.steps)

    @property
    def fill_ratio(self) -> float:
        """The part of the packs that holds samples, 0 to 1."""
        return self.num_tokens / (len(self.steps) * self.pack_length)

    @property
    def tokens_per_second(self) -> float:
        """From shard to weights, first step left out (it warms up)."""
        timed = self.steps[1:] or self.steps
        return sum(step.num_tokens for step in timed) / sum(step.seconds for step in timed)

    @property
    def first_loss(self) -> float:
        """The mean loss of the first steps."""
        return _mean_loss(self.steps[:LOSS_WINDOW])

    @property
    def last_loss(self) -> float:
        """The mean loss of the last steps."""
        return _mean_loss(self.steps[-LOSS_WINDOW:])

    def as_dict(self) -> dict[str, Any]:
        """Plain data for ``--json``."""
        return {
            "processor": self.processor,
            "shards": self.shards,
            "steps": len(self.steps),
            "samples": self.num_samples,
            "tokens": self.num_tokens,
            "loss_tokens": sum(step.num_loss_tokens for step in self.steps),
            "fill_ratio": self.fill_ratio,
            "skipped": dict(self.skipped),
            "tokens_per_second": self.tokens_per_second,
            "first_loss": self.first_loss,
            "last_loss": self.last_loss,
        }


def as_table(report: DemoReport) -> Table:
    """The table at the end of the demo."""
    table = Table(title="packloom demo", show_header=False, title_justify="left")
    table.add_column(style="bold")
    table.add_column()
    samples_per_pack = report.num_samples / len(report.steps)
    loss_tokens = sum(step.num_loss_tokens for step in report.steps)
    table.add_row("samples", f"{report.num_samples:,} in {len(report.steps)} packs ({samples_per_pack:.1f} per pack)")
    table.add_row("tokens", f"{report.num_tokens:,}, {loss_tokens:,} of them trained on")
    table.add_row("fill ratio", f"{report.fill_ratio:.1%} of {report.pack_length:,} tokens per pack")
    reasons = "\n".join(f"{number} × {code}" for code, number in sorted(report.skipped.items()))
    table.add_row("skipped", f"{sum(report.skipped.values())}" + (f"\n{reasons}" if reasons else ""))
    table.add_row("tokens/s", f"{report.tokens_per_second:,.0f} (reading, packing and training)")
    trend = "falls" if report.last_loss < report.first_loss else "does not fall: try more --steps"
    table.add_row("loss", f"{report.first_loss:.2f} → {report.last_loss:.2f}, {trend}")
    return table


def _mean_loss(steps: tuple[Step, ...]) -> float:
    return sum(step.loss for step in steps) / len(steps)
