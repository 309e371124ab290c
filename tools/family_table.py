"""The families of the encoders' registry go in, the tables of their settings in docs/masking.md come out.

Run ``python tools/family_table.py`` to write them; ``--check`` fails (exit status 1) where the page is out of date.
"""

from __future__ import annotations

import argparse
import importlib
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import get_type_hints

from packloom.task_encoders import TaskEncoder
from packloom.task_encoders.family import Family
from packloom.task_encoders.registry import BUILT_IN, GENERIC, GENERIC_TEXT

PAGE = Path(__file__).resolve().parent.parent / "docs" / "masking.md"
BEGIN, END = "<!-- tools/family_table.py: begin -->", "<!-- tools/family_table.py: end -->"
#: More tokens than these are not all written out.
MANY = 8
POSITIONS = {"mrope_positions": "multimodal", "text_positions": "plain"}


def main(arguments: list[str] | None = None) -> int:
    """Write the tables into the page; with ``--check`` only compare. 1 where the page differs, else 0."""
    parser = argparse.ArgumentParser(description="Write the tables of family settings into docs/masking.md.")
    parser.add_argument("page", nargs="?", type=Path, default=PAGE)
    parser.add_argument("--check", action="store_true", help="change nothing; exit status 1 if the page is out of date")
    options = parser.parse_args(arguments)
    text = options.page.read_text(encoding="utf-8")
    new = with_tables(text)
    if not options.check:
        options.page.write_text(new, encoding="utf-8")
    elif new != text:
        print(f"{options.page} is out of date: run python tools/family_table.py", file=sys.stderr)
        return 1
    return 0


def with_tables(page: str) -> str:
    """The page with fresh tables between its two marks."""
    before, begin, rest = page.partition(BEGIN)
    _, end, behind = rest.partition(END)
    if not begin or not end:
        raise SystemExit(f"the page needs the lines {BEGIN!r} and {END!r}")
    encoders = families()
    return f"{before}{BEGIN}\n\n{turns(encoders)}\n\n{rows(encoders)}\n\n{END}{behind}"


def families() -> dict[type[TaskEncoder], list[str]]:
    """Each built-in encoder with the model types that it stands for."""
    found: dict[type[TaskEncoder], list[str]] = {}
    for model_type, path in {**BUILT_IN, "": GENERIC_TEXT, " ": GENERIC}.items():
        module, _, name = path.partition(":")
        found.setdefault(getattr(importlib.import_module(module), name), []).append(model_type)
    return found


def turns(encoders: dict[type[TaskEncoder], list[str]]) -> str:
    """Where an assistant turn starts and ends, and what belongs to the prompt."""
    lines = []
    for encoder, model_types in encoders.items():
        family = encoder.family
        thinking = family.thinking
        lines.append(
            [
                _who(model_types),
                _code(boundary.start for boundary in family.boundaries) or "inferred",
                _code(dict.fromkeys(end for boundary in family.boundaries for end in boundary.ends)) or "inferred",
                _code(family.prompt_prefixes),
                _code([thinking.open, thinking.close]) if thinking else "",
                _code(filter(None, [family.final_end])),
                "yes" if family.training_edits else "",
            ]
        )
    head = [
        "model types",
        "a turn starts behind",
        "and ends on",
        "prompt, not answer",
        "reasoning",
        "we append",
        "training template",
    ]
    return _table(head, lines)


def rows(encoders: dict[type[TaskEncoder], list[str]]) -> str:
    """What a family does with content, tokens and batches."""
    lines = []
    for encoder, model_types in encoders.items():
        family = encoder.family
        position_rule = family.positions.__name__  # type: ignore[attr-defined]
        lines.append(
            [
                _who(model_types),
                (encoder.__doc__ or "").splitlines()[0].partition(": ")[2].replace("|", "\\|"),
                family.content.replace("_", " "),
                _code(family.media_tokens),
                _code(sorted(family.payload_tokens)),
                _code(filter(None, [family.token_types])),
                _tensors(family),
                POSITIONS.get(position_rule, position_rule),
                "refused" if family.packing_leak else "yes",
            ]
        )
    head = [
        "model types",
        "to know",
        "content as",
        "media tokens",
        "data may spell",
        "token tensor",
        "media tensors",
        "positions",
        "packing",
    ]
    return _table(head, lines)


def _who(model_types: Sequence[str]) -> str:
    named = [name for name in model_types if name.strip()]
    return _code(named) if named else "any text model" if model_types == [""] else "any other processor"


def _tensors(family: Family) -> str:
    """The tensors of a family's images and audio, where the class of a rule names them."""
    keys: list[str] = []
    for rule in (family.image_rule, family.audio_rule):
        made = rule and get_type_hints(getattr(rule, "__func__", rule)).get("return")
        fields = getattr(made, "__dataclass_fields__", {})
        named = fields["model_keys"].default if "model_keys" in fields else ()
        keys += named if isinstance(named, tuple) else ()
    return _code(keys)


def _table(head: Sequence[str], lines: Iterable[Sequence[str]]) -> str:
    return "\n".join(f"| {' | '.join(line)} |" for line in [head, ["---"] * len(head), *lines])


def _code(texts: Iterable[str]) -> str:
    """Each text as code, of many the first and the last; line ends and cell borders spelled out."""
    codes = ["`" + text.replace("\n", "\\n").replace("|", "\\|") + "`" for text in texts]
    return " ".join(codes if len(codes) <= MANY else [*codes[: MANY - 2], "…", codes[-1]])


if __name__ == "__main__":
    sys.exit(main())
