"""What every test shares: an offline, one-threaded session, torchvision where it can be had, and the shared material.

``../shared`` beside the repository holds real processors and cases; tests that need it skip where it is absent.
"""

from __future__ import annotations

import importlib
import importlib.util
import json
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
os.environ.setdefault("OMP_NUM_THREADS", "1")

import torch

REPOSITORY = Path(__file__).resolve().parent.parent
SHARED = REPOSITORY.parent / "shared"


def _repair_torchvision() -> None:
    """Where torchvision is installed but its plain import fails, import it through tests/support."""
    if importlib.util.find_spec("torchvision") is None:
        return
    try:
        importlib.import_module("torchvision")
    except (ImportError, RuntimeError):
        for name in [name for name in sys.modules if name.split(".")[0] == "torchvision"]:
            del sys.modules[name]
        support = str(Path(__file__).resolve().parent / "support")
        os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [support, os.environ.get("PYTHONPATH")]))
        spec = importlib.util.spec_from_file_location("packloom_tests_support", f"{support}/sitecustomize.py")
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        sys.modules[spec.name] = module
        importlib.import_module("torchvision")


_repair_torchvision()  # before any test imports transformers
torch.set_num_threads(1)  # tiny models gain nothing from more, and on a busy machine threads wait for each other


@pytest.fixture(scope="session")
def shared_dir() -> Path:
    """The folder of shared test material beside the repository."""
    if not SHARED.is_dir():
        pytest.skip("needs ../shared (real processors and cases) beside the repository")
    return SHARED


@pytest.fixture(scope="session")
def processor_dir(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """``processor_dir("qwen2_5_vl")``: a folder that holds that family's real processor."""
    target = tmp_path_factory.mktemp("processors")

    def unpacked(family: str) -> Path:
        script = SHARED / "processors" / "materialize.py"
        if not (script.parent / family).is_dir():
            pytest.skip(f"needs ../shared/processors/{family} beside the repository")
        spec = importlib.util.spec_from_file_location("materialize", script)
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        return Path(module.materialize(family, target))

    return unpacked


@pytest.fixture(scope="session")
def cases(shared_dir: Path) -> list[dict[str, Any]]:
    """The rows of conversations.jsonl, each with the outcome that it must have."""
    lines = (shared_dir / "cases" / "conversations.jsonl").read_text(encoding="utf-8").splitlines()
    return [json.loads(line) for line in lines]


@pytest.fixture
def needs_torchvision() -> None:
    """For a test that compares with torchvision's image backend."""
    pytest.importorskip("torchvision", reason="torchvision is not installed: compares with its image backend")


@pytest.fixture(scope="session", autouse=True)
def _tokenizers_are_read_once() -> Iterator[None]:
    """A large tokenizer takes seconds to read: tests share those of unchanged folders.

    One that a test changes is its own: ``from_pretrained(folder, local_files_only=True)``.
    """
    from transformers import AutoTokenizer  # noqa: PLC0415 - after torchvision is repaired

    read, known = AutoTokenizer.from_pretrained, {}

    def load(name: str | Path, **settings: Any) -> Any:
        files = sorted(Path(name).rglob("*")) if Path(name).is_dir() else []
        if settings or not files:
            return read(name, **settings)
        key = tuple((str(path), path.stat().st_mtime_ns, path.stat().st_size) for path in files)
        if key not in known:
            known[key] = read(name)
        return known[key]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(AutoTokenizer, "from_pretrained", load)
        yield
