"""Lance datasets of real images, in every way to store them, become shards with the same bytes and messages."""

from __future__ import annotations

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
