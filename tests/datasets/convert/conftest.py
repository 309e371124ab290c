"""What the tests of conversion share: images, rows about them, and ways to read shards back."""

from __future__ import annotations

import hashlib
import importlib.util
import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from packloom.datasets import open_dataset
from packloom.datasets.convert.runners import LocalProcesses


@pytest.fixture(scope="session")
def image_files(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Twelve small images of four formats; all are called ``.jpg``, whatever they are."""
    folder = tmp_path_factory.mktemp("images")
    files = []
    for number in range(12):
        path = folder / f"{number:02d}.jpg"
        image = Image.effect_noise((8 + number, 6), 60 + number).convert("RGB")
        image.save(path, ("JPEG", "PNG", "WEBP", "BMP")[number % 4])
        files.append(path)
    return files


@pytest.fixture(scope="session")
def rows(image_files: list[Path]) -> list[dict[str, Any]]:
    """LLaVA rows with one image each, but row 5 without any."""
    return [
        {
            "id": f"row.{number}",
            "image": path.name if number != 5 else None,
            "conversations": [
                {"from": "human", "value": f"<image>\nWhat is {number}?" if number != 5 else "Hi"},
                {"from": "gpt", "value": f"It is ü{number}."},
            ],
        }
        for number, path in enumerate(image_files)
    ]


@pytest.fixture
def llava(tmp_path: Path, rows: list[dict[str, Any]]) -> Path:
    path = tmp_path / "llava.json"
    path.write_text(json.dumps(rows, indent=2), encoding="utf-8")
    return path


@pytest.fixture
def read_back() -> Callable[[Path], dict[str, tuple[dict[str, Any], list[bytes]]]]:
    """``read_back(folder)``: key → (the json part without media names, the media in their order)."""

    def read(folder: Path) -> dict[str, tuple[dict[str, Any], list[bytes]]]:
        found = {}
        for sample in open_dataset(folder):
            row = json.loads(sample["json"])
            names = row.pop("images", [])
            parts = {name for name in sample if not name.startswith("__") and name != "json"}
            assert parts == set(names)
            found[sample["__key__"]] = row, [sample[name] for name in names]
        return found

    return read


@pytest.fixture
def tree() -> Callable[[Path], dict[str, str]]:
    """``tree(folder)``: path below it → digest, of every file."""

    def digests(folder: Path) -> dict[str, str]:
        files = [path for path in sorted(folder.rglob("*")) if path.is_file()]
        return {str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest() for path in files}

    return digests


@pytest.fixture(scope="session")
def spawned() -> Iterator[LocalProcesses]:
    """One spawned process for all tests that need Lance."""
    runner = LocalProcesses(1)
    yield runner
    runner.close()


@pytest.fixture(scope="session")
def make_lance() -> Callable[[list[dict[str, Any]], Path], None]:
    """``make_lance(rows, out)``: the datasets of lance_maker, one per way to store images."""
    if importlib.util.find_spec("lance") is None:
        pytest.skip("needs pylance: pip install 'packloom[lance]'")

    def make(rows: list[dict[str, Any]], out: Path) -> None:
        out.mkdir(parents=True, exist_ok=True)
        file = out / "rows.json"
        file.write_text(json.dumps(rows))
        script = Path(__file__).with_name("lance_maker.py")
        subprocess.run([sys.executable, str(script), str(file), str(out)], check=True, timeout=120)

    return make
