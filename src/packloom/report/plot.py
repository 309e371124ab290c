"""Stats go in, a picture of them comes out as PNG, SVG, PDF or one HTML file; needs the extra ``plot``."""

from __future__ import annotations

import html
import io
import os
from pathlib import Path
from typing import Any

from packloom.datasets.files import write_file
from packloom.errors import CapabilityError, ConfigError
from packloom.report.histogram import Histogram
from packloom.report.stats import Stats

_SUFFIXES = (".png", ".svg", ".pdf", ".html")
_BLUE, _GREEN, _GREY = "#4269d0", "#3ca951", "#9498a0"


def check_plot(path: Path) -> None:
    """Raises ConfigError for a kind of file that is not drawn, or a folder that is not there; CapabilityError."""
    if path.suffix not in _SUFFIXES:
        raise ConfigError(f"--plot writes {', '.join(_SUFFIXES)}, not {path.name!r}")
    if not path.parent.is_dir():
        raise ConfigError(f"--plot: there is no folder {path.parent}: make it first")
    _figure_class()


def write_plot(stats: Stats, path: Path) -> None:
    """Draw three histograms and the fill of each pack length into a file, which is there whole or not at all."""
    check_plot(path)
    figure = _figure_class()(figsize=(11, 7), layout="constrained")
    axes = figure.subplots(2, 2)
    totals = stats.totals
    figure.suptitle(f"{totals['num_samples']:,} samples, {totals['tokens']:,} tokens", fontweight="bold")
    _bars(axes[0][0], stats.tokens, "tokens per sample", _BLUE)
    for percent in ("50", "95", "99"):
        value = totals["percentiles"][percent]
        axes[0][0].axvline(value, color=_GREY, linewidth=1, linestyle="--")
        axes[0][0].annotate(
            f" {percent} %", (value, 1), xycoords=("data", "axes fraction"), va="top", fontsize=8, color="#555"
        )
    _bars(axes[0][1], stats.media_tokens, "media tokens per sample that has any", _BLUE)
    _bars(axes[1][0], stats.supervised, "share of a sample that is trained on, in %", _GREEN)
    _fills(axes[1][1], stats)
    _save(figure, path)


def _figure_class() -> Any:
    """A figure without any window: nothing of the user's own pyplot state is touched."""
    try:
        from matplotlib.figure import Figure  # noqa: PLC0415 - optional
    except ImportError as error:
        raise CapabilityError("--plot needs matplotlib: pip install 'packloom[plot]'") from error
    return Figure


def _bars(axes: Any, shown: Histogram, title: str, colour: str) -> None:
    axes.set_title(title, loc="left", fontsize=10)
    axes.spines[["top", "right"]].set_visible(False)
    axes.set_ylabel("samples", fontsize=9)
    if not shown.counts:
        axes.text(0.5, 0.5, "none", ha="center", va="center", transform=axes.transAxes, color=_GREY)
        return
    widths = [high - low for low, high in zip(shown.edges, shown.edges[1:], strict=False)]
    axes.bar(shown.edges[:-1], shown.counts, width=widths, align="edge", color=colour, edgecolor="white")
    axes.xaxis.set_major_formatter(lambda value, _: f"{value:,.10g}")
    axes.yaxis.set_major_formatter(lambda value, _: f"{value:,.10g}")


def _fills(axes: Any, stats: Stats) -> None:
    axes.set_title("fill of a batch, and steps of an epoch for each number of ranks", loc="left", fontsize=10)
    axes.spines[["top", "right"]].set_visible(False)
    kinds: dict[str, list[Any]] = {}
    for item in stats.steps:
        name = f"packs of {item.length:,}" if item.layout == "packed" else f"{item.micro_batch_size:,} padded rows"
        kinds.setdefault(name, []).append(item)
    fills = [items[0].fill * 100 for items in kinds.values()]
    axes.barh(list(kinds), fills, color=_BLUE)
    axes.set_xlim(0, 100)
    axes.invert_yaxis()
    axes.set_xlabel("%", fontsize=9)
    for row, (fill, items) in enumerate(zip(fills, kinds.values(), strict=True)):
        steps = ", ".join(f"dp {item.dp_size}: {item.steps:,}" for item in items)
        text = f" {fill:.1f} %   {steps} steps"
        axes.text(1, row, text, va="center", color="white" if fill > 50 else "black", fontsize=9)


def _save(figure: Any, path: Path) -> None:
    buffer = io.BytesIO()
    figure.savefig(buffer, format="svg" if path.suffix == ".html" else path.suffix[1:], dpi=150)
    data = buffer.getvalue()
    if path.suffix == ".html":
        picture = data[data.index(b"<svg") :].decode()
        title = html.escape("packloom stats")
        page = (
            f'<!doctype html><html lang="en"><meta charset="utf-8"><title>{title}</title>'
            "<style>body{margin:0;background:#fff}svg{width:100%;height:auto;max-width:1200px;display:block;"
            f"margin:auto}}</style>{picture}</html>\n"
        )
        data = page.encode()
    write_file(os.fspath(path), data)
