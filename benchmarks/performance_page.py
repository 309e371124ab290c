"""Measured turns go in; the table, the goals and the plot of docs/performance.md come out."""

from __future__ import annotations

import re
import statistics
from collections.abc import Iterator, Mapping, Sequence
from html import escape
from pathlib import Path

OURS = {"torch": "packloom, torchvision's pixels", "pillow": "packloom, Pillow's pixels"}
FLOORS = {"torch": "floor with torch's resize", "pillow": "floor with Pillow's resize"}
PEERS = ("HF collate, torchvision", "Energon with HF encoder, packing")
REPACKED = "HF collate, repacked"

Turns = Sequence[Mapping[str, float]]
Results = Mapping[tuple[str, int], Turns]

_HEAD = (
    "| contender | workers | tokens/s | lowest–highest | samples/s | trained tokens/s | MB per sample | fill |"
    " peak MiB | first batch, s |",
    "|---|--:|--:|--:|--:|--:|--:|--:|--:|--:|",
)


def median(results: Results, name: str, figure: str, workers: int = 1) -> float | None:
    """Over the turns; None where there are none."""
    turns = results.get((name, workers))
    return statistics.median(turn[figure] for turn in turns) if turns else None


def as_table(results: Results, missing: Mapping[str, str]) -> Iterator[str]:
    """Lines of Markdown."""
    yield from _HEAD
    for (name, workers), turns in sorted(results.items(), key=lambda item: item[0][1]):
        middle = {key: statistics.median(turn[key] for turn in turns) for key in turns[0] if key != "name"}
        rates = [turn["tokens_per_s"] for turn in turns]
        gives = not name.startswith("floor")
        loss_tokens = _if(gives, f"{middle['loss_tokens_per_s']:,.0f}")
        megabytes = _if(gives, f"{middle['bytes_per_sample'] / 1e6:.2f}")
        fill = _if(gives and name != REPACKED, f"{middle['fill']:.3f}")
        yield (
            f"| {name} | {workers} | {middle['tokens_per_s']:,.0f} | {min(rates):,.0f}–{max(rates):,.0f}"
            f" | {middle['samples_per_s']:.1f} | {loss_tokens} | {megabytes} | {fill}"
            f" | {middle['peak_rss_mb']:,.0f} | {middle['first_batch_s']:.1f} |"
        )
    for name, reason in missing.items():
        yield f"| {name} | | not run: {reason.replace('|', '/')} | | | | | | | |"


def _if(applies: bool, text: str) -> str:
    return text if applies else "–"


def as_lines(results: Results) -> Iterator[str]:
    """A line per goal."""
    results = {place: [_with_bytes_per_token(turn) for turn in turns] for place, turns in results.items()}
    for kind, ours in OURS.items():
        yield _ratio(f"tokens/s over the {FLOORS[kind]}", results, ours, FLOORS[kind], "tokens_per_s", "0.85 or more")
    ours = OURS["torch"]
    for peer in PEERS:
        yield _ratio(f"tokens/s over {peer}", results, ours, peer, "tokens_per_s", "3 or more")
    yield _ratio(f"tokens/s over {REPACKED}", results, ours, REPACKED, "tokens_per_s", "10 or more")
    for peer in PEERS:
        yield _ratio(f"bytes per token, {peer} over packloom", results, peer, ours, "bytes_per_token", "7.5 or more")
    yield _ratio(f"first batch, packloom over {PEERS[0]}", results, ours, PEERS[0], "first_batch_s", "1 or less")
    fill = median(results, ours, "fill")
    yield f"fill: {'not measured' if fill is None else f'{fill:.4f}'} (goal: 0.985 or more)"
    one, two = (median(results, ours, "tokens_per_s", workers) for workers in (1, 2))
    floors = [median(results, FLOORS["torch"], "tokens_per_s", workers) for workers in (1, 2)]
    if one and two:
        beside = f"; the floor: {floors[1] / floors[0]:.2f}" if floors[0] and floors[1] else ""
        yield f"tokens/s, two workers over one: {two / one:.2f} (goal: 1.8 or more where two cores are free{beside})"


def _with_bytes_per_token(turn: Mapping[str, float]) -> dict[str, float]:
    """In a short turn samples are larger for one than for another."""
    return {**turn, "bytes_per_token": turn["bytes_per_sample"] * turn["samples_per_s"] / turn["tokens_per_s"]}


def _ratio(what: str, results: Results, over: str, under: str, figure: str, goal: str) -> str:
    """Of the medians, with the lowest and highest over pairs of turns."""
    first, second = results.get((over, 1)), results.get((under, 1))
    if not first or not second:
        return f"{what}: not measured (goal: {goal})"
    pairs = [one[figure] / other[figure] for one, other in zip(first, second, strict=False)]
    middle = statistics.median(turn[figure] for turn in first) / statistics.median(turn[figure] for turn in second)
    return f"{what}: {middle:.2f}, turn by turn {min(pairs):.2f} to {max(pairs):.2f} (goal: {goal})"


def write_page(folder: Path, results: Results, missing: Mapping[str, str]) -> None:
    """Renew what stands between the marks of performance.md, and draw performance.svg."""
    page = folder / "performance.md"
    goals = [f"- {line}" for line in as_lines(results)]
    body = "\n".join(["<!-- figures -->", *as_table(results, missing), "", *goals, "<!-- end of figures -->"])
    text = page.read_text(encoding="utf-8")
    page.write_text(
        re.sub("<!-- figures -->.*<!-- end of figures -->", lambda _: body, text, flags=re.DOTALL), encoding="utf-8"
    )
    (folder / "performance.svg").write_text(as_svg(results), encoding="utf-8")


def as_svg(results: Results) -> str:
    """Bars of tokens/s with one worker, a line from the lowest to the highest turn."""
    bars = [(name, turns) for (name, workers), turns in results.items() if workers == 1]
    bars.sort(key=lambda bar: -statistics.median(turn["tokens_per_s"] for turn in bar[1]))
    longest = max(turn["tokens_per_s"] for _, turns in bars for turn in turns)
    height, left, width = 26, 250, 440
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="780" height="{height * len(bars) + 50}"'
        ' font-family="sans-serif" font-size="13">',
        '<rect width="100%" height="100%" fill="white"/>',
        '<text x="10" y="22" font-weight="bold">tokens/s, one worker (median; line: lowest to highest turn)</text>',
    ]
    for number, (name, turns) in enumerate(bars):
        rates = sorted(turn["tokens_per_s"] for turn in turns)
        middle, y = statistics.median(rates), 40 + height * number
        low, long, high = (left + width * rate / longest for rate in (rates[0], middle, rates[-1]))
        colour = "#2a78b5" if name.startswith("packloom") else "#b9bec4" if name.startswith("floor") else "#d98a3d"
        lines += [
            f'<text x="{left - 8}" y="{y + 14}" text-anchor="end">{escape(name)}</text>',
            f'<rect x="{left}" y="{y}" width="{long - left:.1f}" height="18" fill="{colour}"/>',
            f'<line x1="{low:.1f}" y1="{y + 9}" x2="{high:.1f}" y2="{y + 9}" stroke="black"/>',
            f'<text x="{high + 6:.1f}" y="{y + 14}">{middle:,.0f}</text>',
        ]
    return "\n".join([*lines, "</svg>", ""])
