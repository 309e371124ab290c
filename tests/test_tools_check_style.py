"""tools/check_style.py: planted breaches come out with file, line and rule; clean files come out with nothing."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import pytest

SCRIPT = Path(__file__).resolve().parent.parent / "tools" / "check_style.py"


@pytest.fixture(scope="module")
def style() -> ModuleType:
    spec = importlib.util.spec_from_file_location("check_style", SCRIPT)
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module


def plant(root: Path, name: str, text: str) -> None:
    path = root / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")


def found(style: ModuleType, root: Path) -> list[tuple[str, int, str]]:
    return [(breach.path.as_posix(), breach.line, breach.rule) for breach in style.check_repository(root)]


def test_this_repository_is_clean(style: ModuleType) -> None:
    assert [str(breach) for breach in style.check_repository(SCRIPT.parent.parent)] == []


def test_file_length_counts_the_last_line(style: ModuleType, tmp_path: Path) -> None:
    plant(tmp_path, "src/packloom/types.py", '"""Doc."""\n' + "x = 1\n" * 299)
    assert found(style, tmp_path) == []
    plant(tmp_path, "src/packloom/types.py", '"""Doc."""\n' + "x = 1\n" * 300)
    assert found(style, tmp_path) == [("src/packloom/types.py", 301, "file-length")]


def test_function_length(style: ModuleType, tmp_path: Path) -> None:
    plant(tmp_path, "tests/test_a.py", '"""Doc."""\n\n\ndef short():\n' + "    x = 1\n" * 79)
    assert found(style, tmp_path) == []
    plant(tmp_path, "tests/test_a.py", '"""Doc."""\n\n\nclass A:\n    async def long(self):\n' + "        x = 1\n" * 80)
    assert found(style, tmp_path) == [("tests/test_a.py", 5, "function-length")]


def test_print_and_assert_are_refused_in_src_only(style: ModuleType, tmp_path: Path) -> None:
    text = '"""Doc."""\nassert True\nprint("x")\nlogger.print("x")\n'
    plant(tmp_path, "src/packloom/rng.py", text)
    plant(tmp_path, "tests/test_b.py", text)
    assert found(style, tmp_path) == [("src/packloom/rng.py", 2, "no-assert"), ("src/packloom/rng.py", 3, "no-print")]


@pytest.mark.parametrize(
    ("file", "line"),
    [
        ("datasets/index.py", "from packloom.collates.padded import pad"),  # sibling folders
        ("collates/collate.py", "import packloom.task_encoders.base"),  # against the one arrow
        ("models/routing.py", "from packloom import loader"),
        ("types.py", "from packloom.datasets import shards"),
        ("packing.py", "from packloom.loader import build_loader"),
        ("loader.py", "from packloom.cli import main"),
        ("loader.py", "from packloom import build_loader"),  # its own package's __init__
        ("datasets/index.py", "from . import shards"),
        ("config.py", "if True:\n    from packloom.models import forward_step"),
        ("novelty.py", "x = 1"),  # a unit without a layer
    ],
)
def test_import_direction(style: ModuleType, tmp_path: Path, file: str, line: str) -> None:
    plant(tmp_path, f"src/packloom/{file}", f'"""Doc."""\n{line}\n')
    [(path, _, rule)] = found(style, tmp_path)
    assert path == f"src/packloom/{file}"
    assert rule == ("absolute-imports" if line.startswith("from .") else "import-direction")


@pytest.mark.parametrize(
    ("file", "line"),
    [
        ("task_encoders/base.py", "from packloom.collates.collate import Collate"),
        ("task_encoders/base.py", "from packloom.task_encoders.family import Family"),
        ("config.py", "from packloom.errors import ConfigError"),
        ("loader.py", "from packloom import datasets, packing"),
        ("cli.py", "from packloom.demo.run import run_demo"),
        ("demo/run.py", "from packloom.loader import build_loader"),
        ("__init__.py", "from packloom.loader import build_loader"),
        ("models/routing.py", "import packloomish.datasets"),
    ],
)
def test_allowed_imports(style: ModuleType, tmp_path: Path, file: str, line: str) -> None:
    plant(tmp_path, f"src/packloom/{file}", f'"""Doc."""\n{line}\n')
    assert found(style, tmp_path) == []


def test_docstring_tests_init_and_syntax(style: ModuleType, tmp_path: Path) -> None:
    plant(tmp_path, "examples/a.py", "x = 1\n")
    plant(tmp_path, "tests/datasets/__init__.py", '"""Doc."""\n')
    plant(tmp_path, "tools/b.py", '"""Doc."""\nx = = 1\n')
    assert found(style, tmp_path) == [
        ("examples/a.py", 1, "module-docstring"),
        ("tests/datasets/__init__.py", 1, "tests-init"),
        ("tools/b.py", 2, "syntax"),
    ]


@pytest.mark.parametrize("folder", ["work", "root", "home", "Users"])
def test_machine_paths(style: ModuleType, tmp_path: Path, folder: str) -> None:
    plant(tmp_path, "README.md", f"fine\n\nsee /{folder}/someone/data\n")
    plant(
        tmp_path, "docs/a.md", f"../{folder}/x, ~/{folder}/x, https://host/{folder}/x and <repo>/{folder}/x are fine\n"
    )
    assert found(style, tmp_path) == [("README.md", 3, "machine-path")]


def test_main_prints_the_breach_and_fails(
    style: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    plant(tmp_path, "src/packloom/rng.py", "x = 1\n")
    assert style.main([str(tmp_path)]) == 1
    assert "src/packloom/rng.py:1: module-docstring" in capsys.readouterr().out
    plant(tmp_path, "src/packloom/rng.py", '"""Doc."""\n')
    assert style.main([str(tmp_path)]) == 0
