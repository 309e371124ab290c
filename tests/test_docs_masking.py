"""docs/masking.md: its tables come from the code, and it names every setting, method and refusal there is."""

from __future__ import annotations

import importlib.util
import re
import sys
from pathlib import Path
from types import ModuleType
from typing import get_args

import pytest

from packloom.config import ControlTokenPolicy, LossOn, ThinkingPolicy
from packloom.task_encoders.registry import BUILT_IN

REPOSITORY = Path(__file__).resolve().parent.parent
PAGE = REPOSITORY / "docs" / "masking.md"


@pytest.fixture(scope="module")
def tables() -> ModuleType:
    path = REPOSITORY / "tools" / "family_table.py"
    spec = importlib.util.spec_from_file_location("family_table", path)
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def test_the_tables_are_up_to_date(tables: ModuleType) -> None:
    assert tables.main(["--check"]) == 0, "run python tools/family_table.py"


def test_a_page_out_of_date_is_told_and_rewritten(
    tables: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    page = tmp_path / "page.md"
    page.write_text(f"before\n{tables.BEGIN}\nold\n{tables.END}\nbehind\n", encoding="utf-8")
    assert tables.main([str(page), "--check"]) == 1
    assert "run python tools/family_table.py" in capsys.readouterr().err
    assert tables.main([str(page)]) == 0
    text = page.read_text(encoding="utf-8")
    assert text.startswith(f"before\n{tables.BEGIN}\n\n| model types |")
    assert text.endswith(f"|\n\n{tables.END}\nbehind\n")
    assert tables.main([str(page), "--check"]) == 0
    page.write_text("no marks", encoding="utf-8")
    with pytest.raises(SystemExit, match="needs the lines"):
        tables.main([str(page)])


def test_the_tables_show_the_families(tables: ModuleType) -> None:
    lines = PAGE.read_text(encoding="utf-8").splitlines()
    [qwen] = [line for line in lines if line.startswith("| `qwen2_5_vl` | `<")]
    assert qwen.startswith(r"| `qwen2_5_vl` | `<\|im_start\|>assistant\n` | `<\|im_end\|>` |")
    [glm] = [line for line in lines if line.startswith("| `glm4v` | `<")]
    assert glm.endswith(r"| `<\|endoftext\|>` |  |")
    assert all(sum(f"`{model_type}`" in line for line in lines) >= 2 for model_type in BUILT_IN)
    assert len({line.count("|") - line.count(r"\|") for line in lines if line.startswith("| `qwen")}) == 2


def test_the_page_names_every_setting_method_and_refusal() -> None:
    text = PAGE.read_text(encoding="utf-8")
    choices = [choice for hint in (LossOn, ThinkingPolicy, ControlTokenPolicy) for choice in get_args(hint)]
    assert [choice for choice in choices if f'`"{choice}"`' not in text] == []
    source = "".join(
        path.read_text(encoding="utf-8") for path in (REPOSITORY / "src/packloom/task_encoders").glob("*.py")
    )
    codes = set(re.findall(r'code="((?:mask|template|thinking)\.\w+)"', source))
    assert len(codes) >= 15
    assert sorted(code for code in codes if f"`{code}`" not in text) == []
    methods = set(re.findall(r'name(?:: str)? ?= ?"(\w+)"', (source)))
    assert {"generation_tags", "token_search", "inferred_boundaries"} <= methods
    assert [
        name for name in ("generation_tags", "token_search", "inferred_boundaries") if f"`{name}`" not in text
    ] == []


def test_links_lead_somewhere() -> None:
    for page in (PAGE, PAGE.with_name("adding-a-model.md")):
        text = page.read_text(encoding="utf-8")
        for target in re.findall(r"\]\(([^)#]+)", text):
            assert (page.parent / target).exists(), f"{page.name}: {target}"
