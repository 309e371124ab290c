"""Lance datasets of real images, in every way to store them, become shards with the same bytes and messages."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from packloom.datasets.convert import ConvertConfig, RunSettings, convert
from packloom.datasets.convert.runners import LocalProcesses
from packloom.errors import ConfigError, ShardError
from packloom.task_encoders import cook

NUM_ROWS = 2000
NULLS = range(0, NUM_ROWS, 100)  # rows whose image is null: text only
EMPTIES = range(50, NUM_ROWS, 100)  # rows whose image has no bytes, or whose list is empty


@pytest.fixture(scope="module")
def easy_rows() -> list[dict[str, Any]]:
    easy_vqa = pytest.importorskip("easy_vqa", reason="needs easy-vqa: pip install 'packloom[demo]'")
    paths = easy_vqa.get_train_image_paths()
    rows = []
    for number in range(NUM_ROWS):
        images = None if number in NULLS else [] if number in EMPTIES else [paths[number]]
        mark = "<image>\n" if images else ""
        turns = [{"from": "human", "value": f"{mark}q {number}"}, {"from": "gpt", "value": f"a {number}"}]
        rows.append({"id": f"row.{number}", "images": images, "conversations": turns})
    return rows


@pytest.fixture(scope="module")
def folder(
    tmp_path_factory: pytest.TempPathFactory, easy_rows: list[dict[str, Any]], make_lance: Callable[..., None]
) -> Path:
    out = tmp_path_factory.mktemp("lance")
    make_lance(easy_rows, out)
    return out


@pytest.mark.parametrize("kind", ["binary", "list", "blob_v1", "blob_v2", "struct", "path"])
def test_every_byte_and_message(
    kind: str,
    folder: Path,
    easy_rows: list[dict[str, Any]],
    tmp_path: Path,
    spawned: LocalProcesses,
    read_back: Callable[[Path], dict[str, Any]],
) -> None:
    root = str(Path(easy_rows[1]["images"][0]).parent) if kind == "path" else None
    config = ConvertConfig(media_root=root)
    report = convert(folder / f"{kind}.lance", tmp_path, config, settings=RunSettings(runner=spawned), check=cook)
    # Bytes that are there, but none: no image. A list of none, or null, is a row of text.
    bad = len(EMPTIES) if kind in ("binary", "blob_v1", "blob_v2") else 0
    assert (report.num_rows, report.num_samples, report.num_bad) == (NUM_ROWS, NUM_ROWS - bad, bad)
    assert dict(report.codes) == ({"convert.empty_media": bad} if bad else {})
    found = read_back(tmp_path)
    assert len(found) == NUM_ROWS - bad
    for number, row in enumerate(easy_rows):
        if bad and number in EMPTIES:
            assert f"{number:09d}" not in found
            continue
        images = [Path(path).read_bytes() for path in row["images"] or ()]
        assert found[f"{number:09d}"] == ({"id": row["id"], "conversations": row["conversations"]}, images)


def test_a_media_table_is_joined_by_key(
    folder: Path,
    easy_rows: list[dict[str, Any]],
    tmp_path: Path,
    spawned: LocalProcesses,
    read_back: Callable[[Path], dict[str, Any]],
) -> None:
    media = str(folder / "media.lance")
    config = ConvertConfig(media_table=media, media_key="name", media_value="data", filter="id != 'row.7'")
    report = convert(folder / "keys.lance", tmp_path, config, settings=RunSettings(runner=spawned), check=cook)
    kept = [row for row in easy_rows if row["id"] not in ("row.3", "row.7")]  # 3 was deleted from the dataset
    assert report.num_samples == len(kept)
    found = list(read_back(tmp_path).values())
    assert [row["id"] for row, _ in found] == [row["id"] for row in kept]
    wanted = [[Path(path).read_bytes() for path in row["images"] or ()] for row in kept]
    assert [images for _, images in found] == wanted


def test_versions_and_filters(folder: Path, tmp_path: Path, spawned: LocalProcesses) -> None:
    settings = RunSettings(runner=spawned)
    source = folder / "keys.lance"
    config = ConvertConfig(drop=("images",), filter="id IN ('row.3', 'row.50', 'row.0')", version=1)
    assert convert(source, tmp_path / "old", config, settings=settings).num_rows == 3
    with pytest.raises(ConfigError, match=r"filter 'nonsense \(' cannot be used"):
        convert(source, tmp_path / "x", ConvertConfig(drop=("images",), filter="nonsense ("), settings=settings)
    with pytest.raises(ShardError, match="in version 99"):
        convert(source, tmp_path / "x", ConvertConfig(version=99), settings=settings)
    with pytest.raises(ShardError, match=r"nowhere\.lance cannot be opened"):
        convert(folder / "nowhere.lance", tmp_path / "x", settings=settings)
    with pytest.raises(ConfigError, match=r"'images' holds no bytes but names of media.*--media-root"):
        convert(source, tmp_path / "x", settings=settings)
    with pytest.raises(ShardError, match="holds no rows that the filter keeps"):
        convert(source, tmp_path / "x", ConvertConfig(drop=("images",), filter="id = ''"), settings=settings)


def test_a_shuffle_is_a_permutation_of_the_same_samples(
    folder: Path,
    easy_rows: list[dict[str, Any]],
    tmp_path: Path,
    spawned: LocalProcesses,
    read_back: Callable[[Path], dict[str, Any]],
) -> None:
    config = ConvertConfig(shuffle=True, seed=1, filter="id LIKE 'row.1%'")
    convert(folder / "list.lance", tmp_path, config, settings=RunSettings(runner=spawned))
    found = read_back(tmp_path)
    kept = [row for row in easy_rows if row["id"].startswith("row.1")]
    wanted = [[Path(path).read_bytes() for path in row["images"] or ()] for row in kept]
    plain = [f"{number:09d}" for number in range(len(kept))]
    assert [(found[key][0]["id"], found[key][1]) for key in plain] == [
        (row["id"], images) for row, images in zip(kept, wanted, strict=True)
    ]
    moved = sum(one != other for one, other in zip(plain, found, strict=True))
    assert moved > 0.98 * len(plain) > 1000


_CHANGES = """
import json, lance
from pathlib import Path
import pyarrow as pa
from packloom.datasets.convert.lance_source import find_lance

struct = [{"front": b"1", "back": b"2"}] * 4
table = pa.table({"question": list("abcd"), "answer": list("efgh"), "n": range(4), "pair": struct})
SWAP = ("question", "x"), ("answer", "question"), ("x", "answer")
DEEP = ("pair.front", "x"), ("pair.back", "front"), ("pair.x", "back")
changes = {
    "index": lambda data: data.create_scalar_index("n", "BTREE"),
    "config": lambda data: data.update_config({"note": "x"}),
    "swap": lambda data: [data.alter_columns({"path": old, "name": new}) for old, new in SWAP],
    "deep swap": lambda data: [data.alter_columns({"path": old, "name": new}) for old, new in DEEP],
    "rename": lambda data: data.alter_columns({"path": "n", "name": "m"}),
    "cast": lambda data: data.alter_columns({"path": "n", "data_type": pa.int32()}),
    "drop": lambda data: data.drop_columns(["n"]),
    "delete": lambda data: data.delete("n = 2"),
    "update": lambda data: data.update({"answer": "'z'"}, where="n = 2"),
    "append": lambda data: data.insert(table),
}
found = {}
for name, change in changes.items():
    uri = f"{name}.lance"
    old = find_lance(str(lance.write_dataset(table, uri).uri), Path())
    change(lance.dataset(uri))
    new = find_lance(uri, Path())
    found[name] = new.version > old.version, new.identity != old.identity
print(json.dumps(found))
"""


def test_a_change_of_content_or_names_is_another_source(tmp_path: Path) -> None:
    if importlib.util.find_spec("lance") is None:
        pytest.skip("needs pylance: pip install 'packloom[lance]'")
    run = subprocess.run([sys.executable, "-c", _CHANGES], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr
    found = json.loads(run.stdout)
    assert all(is_newer for is_newer, _ in found.values())
    assert [name for name, (_, differs) in found.items() if not differs] == ["index", "config"]
    assert len(found) == 10
