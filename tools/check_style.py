"""The style budgets of this repository: Python files go in, one ``file:line: rule`` per breach comes out.

Run ``python tools/check_style.py`` (or ``make check``); the exit status is 1 when there is a breach.
"""

from __future__ import annotations

import argparse
import ast
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

MAX_FILE_LINES = 300
MAX_FUNCTION_LINES = 80
CODE_FOLDERS = ("src", "tests", "tools", "benchmarks", "examples")
TEXT_SUFFIXES = {".py", ".md", ".toml", ".txt", ".yaml", ".yml", ".cfg", ".json", ""}

PACKAGE = "packloom"
#: unit (a module or folder right under the package) → layer. An import must point to a lower layer.
LAYERS = {
    "types": 0,
    "errors": 0,
    "rng": 0,
    "pixels": 0,
    "alignment": 0,
    "rooms": 0,
    "jpeg_size": 0,
    "image_size": 0,
    "blend": 0,
    "config": 0,
    "config_audio": 0,
    "config_fields": 0,
    "config_packing": 0,
    "config_video": 0,
    "task_encoders": 1,
    "collates": 1,
    "models": 1,
    "datasets": 1,
    "packing": 1,
    "loader": 2,
    "inspect": 2,
    "testing": 2,
    "demo": 3,
    "bench": 3,
    "report": 3,
    "bench_cli": 4,
    "info_cli": 4,
    "inspect_cli": 4,
    "lint_cli": 4,
    "plan_cli": 4,
    "stats_cli": 4,
    "convert_cli": 4,
    "index_cli": 4,  # a command's own module
    "masks_cli": 3,
    "cli": 5,
}
#: The arrows within one layer. The lowest layer's modules may use one another freely.
SAME_LAYER = {("task_encoders", "collates")}

#: A path that exists on one person's machine only.
MACHINE_PATH = re.compile(r"(?<![\w.})>\]/~])(?:/(?:work|root|home|Users)/|[A-Z]:\\Users\\)\w")


@dataclass(frozen=True, kw_only=True)
class Breach:
    """One broken rule."""

    path: Path
    line: int
    rule: str
    message: str

    def __str__(self) -> str:
        return f"{self.path}:{self.line}: {self.rule}: {self.message}"


def check_repository(root: Path) -> list[Breach]:
    """Every breach below ``root``, in path and line order; paths in it are relative to ``root``."""
    breaches: list[Breach] = []
    for path in _files(root):
        text = path.read_text(encoding="utf-8", errors="replace")
        where = path.relative_to(root)
        breaches += check_text(where, text)
        if path.suffix == ".py" and where.parts[0] in CODE_FOLDERS:
            breaches += check_python(where, text)
    return sorted(breaches, key=lambda breach: (breach.path, breach.line, breach.rule))


def check_text(path: Path, text: str) -> Iterator[Breach]:
    """The rules for every text file."""
    for number, line in enumerate(text.splitlines(), start=1):
        if match := MACHINE_PATH.search(line):
            yield Breach(path=path, line=number, rule="machine-path", message=f"absolute path {match.group()!r}...")


def check_python(path: Path, text: str) -> Iterator[Breach]:
    """The rules for one Python file; ``path`` is relative to the repository."""
    lines = len(text.splitlines())
    if lines > MAX_FILE_LINES:
        yield Breach(path=path, line=lines, rule="file-length", message=f"{lines} lines, at most {MAX_FILE_LINES}")
    if path.name == "__init__.py" and path.parts[0] == "tests":
        yield Breach(path=path, line=1, rule="tests-init", message="tests hold no __init__.py: it hides packages")
    try:
        tree = ast.parse(text)
    except SyntaxError as error:
        yield Breach(path=path, line=error.lineno or 1, rule="syntax", message=error.msg)
        return
    if not (ast.get_docstring(tree) or "").strip():
        yield Breach(path=path, line=1, rule="module-docstring", message="say what enters and what leaves")
    yield from _functions(path, tree)
    if path.parts[0] == "src":
        yield from _statements(path, tree)
        yield from _imports(path, tree)


def _files(root: Path) -> Iterator[Path]:
    """The text files of the repository: those at the top, of its code folders and docs; hidden folders but .ci not."""
    for folder in (*CODE_FOLDERS, "docs", ".ci"):
        for path in sorted((root / folder).rglob("*")):
            if path.is_file() and path.suffix in TEXT_SUFFIXES and "__pycache__" not in path.parts:
                yield path
    for path in sorted(root.iterdir()):
        if path.is_file() and not path.name.startswith(".") and path.suffix in TEXT_SUFFIXES:
            yield path


def _functions(path: Path, tree: ast.Module) -> Iterator[Breach]:
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            length = (node.end_lineno or node.lineno) - node.lineno + 1
            if length > MAX_FUNCTION_LINES:
                message = f"{node.name} has {length} lines, at most {MAX_FUNCTION_LINES}"
                yield Breach(path=path, line=node.lineno, rule="function-length", message=message)


def _statements(path: Path, tree: ast.Module) -> Iterator[Breach]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Assert):
            yield Breach(path=path, line=node.lineno, rule="no-assert", message="raise an error that says what to do")
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "print":
            yield Breach(path=path, line=node.lineno, rule="no-print", message="use logging, or the console of the cli")


def _imports(path: Path, tree: ast.Module) -> Iterator[Breach]:
    if path.parts[:2] != ("src", PACKAGE):
        return
    unit = path.parts[2] if len(path.parts) > 3 else path.stem
    if unit == "__init__":  # the public names come from everywhere
        return
    if unit not in LAYERS:
        yield Breach(path=path, line=1, rule="import-direction", message=f"give {unit!r} a layer in tools/check_style")
        return
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.level:
            yield Breach(path=path, line=node.lineno, rule="absolute-imports", message="import from packloom.x")
        for target in _imported_units(node):
            if not _allowed(unit, target):
                message = f"{unit} must not import {target or PACKAGE}"
                yield Breach(path=path, line=node.lineno, rule="import-direction", message=message)


def _imported_units(node: ast.AST) -> list[str]:
    """The units of the package that an import statement names; "" is the package's own ``__init__``."""
    if isinstance(node, ast.Import):
        names = [alias.name for alias in node.names]
    elif isinstance(node, ast.ImportFrom) and not node.level and node.module == PACKAGE:
        # `from packloom import loader` names a unit, `from packloom import build_loader` the package itself
        return [alias.name if alias.name in LAYERS else "" for alias in node.names]
    elif isinstance(node, ast.ImportFrom) and not node.level and node.module:
        names = [node.module]
    else:
        return []
    parts = [name.split(".") for name in names]
    return [[*part, ""][1] for part in parts if part[0] == PACKAGE]


def _allowed(unit: str, target: str) -> bool:
    if target == "":
        return False  # the package's __init__ imports the units, so none of them may need it
    if target == unit or (unit, target) in SAME_LAYER:
        return True
    if target not in LAYERS:
        return False
    return LAYERS[target] < LAYERS[unit] or LAYERS[target] == LAYERS[unit] == 0


def main(arguments: list[str] | None = None) -> int:
    """Print every breach; 1 when there is one, else 0."""
    parser = argparse.ArgumentParser(description="Check the style budgets of the repository.")
    parser.add_argument("root", nargs="?", type=Path, default=Path(__file__).resolve().parent.parent)
    root = parser.parse_args(arguments).root
    breaches = check_repository(root)
    for breach in breaches:
        print(breach)
    print(f"{len(breaches)} style breach(es)" if breaches else "style: all clean", file=sys.stderr)
    return 1 if breaches else 0


if __name__ == "__main__":
    sys.exit(main())
