"""JSON, parquet, Hugging Face, folder and tar sources become the same samples; bad rows are named and counted."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from packloom.datasets import open_dataset, write_shards
from packloom.datasets.convert import ConvertConfig, ConvertReport, convert
from packloom.errors import ConfigError, ShardError, TooManyErrors
from packloom.task_encoders import cook

ReadBack = Callable[[Path], dict[str, Any]]


def expected(rows: list[dict[str, Any]], image_files: list[Path]) -> list[tuple[dict[str, Any], list[bytes]]]:
    """What ``read_back`` must give, in order."""
    return [
        (
            {"id": row["id"], "conversations": row["conversations"]},
            [] if row["image"] is None else [image_files[number].read_bytes()],
        )
        for number, row in enumerate(rows)
    ]


def bad_rows(report: ConvertReport) -> list[tuple[int, str]]:
    if report.quarantine is None:
        return []
    lines = report.quarantine.read_text(encoding="utf-8").splitlines()
    return [(item["row"], item["code"]) for item in map(json.loads, lines)]


@pytest.mark.parametrize("layout", ["array", "lines", "lines_bom", "tight"])
def test_json(
    layout: str, rows: list[dict[str, Any]], image_files: list[Path], tmp_path: Path, read_back: ReadBack
) -> None:
    source = tmp_path / ("rows.json" if layout in ("array", "tight") else "rows.jsonl")
    text = {
        "array": lambda: json.dumps(rows, indent=3, ensure_ascii=False),
        "tight": lambda: json.dumps(rows, separators=(",", ":")),
        "lines": lambda: "\n\n".join(json.dumps(row) for row in rows),
        "lines_bom": lambda: "\ufeff" + "\r\n".join(json.dumps(row, ensure_ascii=False) for row in rows),
    }[layout]()
    source.write_text(text, encoding="utf-8", newline="")
    config = ConvertConfig(media_root=str(image_files[0].parent), samples_per_shard=5)
    report = convert(source, tmp_path / "out", config, check=cook)
    assert (report.num_rows, report.num_samples, len(report.shards)) == (12, 12, 3)
    found = read_back(tmp_path / "out")
    assert list(found) == [f"{number:09d}" for number in range(12)]
    assert list(found.values()) == expected(rows, image_files)
    names = [name for sample in open_dataset(tmp_path / "out") for name in sample if name[0] == "0"]
    assert names[:4] == ["0.jpg", "0.png", "0.webp", "0.bmp"]  # by their bytes; all of them were called .jpg


def test_parquet_and_hugging_face(
    rows: list[dict[str, Any]], image_files: list[Path], tmp_path: Path, read_back: ReadBack
) -> None:
    pa = pytest.importorskip("pyarrow", reason="needs pyarrow: pip install 'packloom[lance]'")
    parquet = pytest.importorskip("pyarrow.parquet")
    hf = pytest.importorskip("datasets", reason="needs datasets: pip install 'packloom[hf]'")
    images = [None if row["image"] is None else p.read_bytes() for row, p in zip(rows, image_files, strict=True)]
    columns = {"id": [row["id"] for row in rows], "conversations": [row["conversations"] for row in rows]}
    table = pa.table({**columns, "image": images})
    parquet.write_table(table, tmp_path / "rows.parquet", row_group_size=5)
    pairs = [None if image is None else {"bytes": image, "path": "x.jpg"} for image in images]
    features = hf.Dataset.from_dict(columns).features | {"image": hf.Image(decode=True)}
    dataset = hf.Dataset.from_dict({**columns, "image": pairs}, features=hf.Features(features))
    hf.DatasetDict({"train": dataset, "test": dataset.select([0])}).save_to_disk(str(tmp_path / "hf"))

    for name, config in (("rows.parquet", ConvertConfig(samples_per_shard=4)), ("hf", ConvertConfig(split="train"))):
        report = convert(tmp_path / name, tmp_path / f"out-{name}", config, check=cook)
        assert report.num_samples == 12
        assert list(read_back(tmp_path / f"out-{name}").values()) == expected(rows, image_files)
    # Tasks keep to row groups of 5, 5 and 2, and fill their shards evenly.
    report = convert(tmp_path / "rows.parquet", tmp_path / "p", ConvertConfig(samples_per_shard=4))
    entries = [shard.num_samples for shard in report.shards]
    assert entries == [3, 2, 3, 2, 2]
    shuffled = convert(tmp_path / "rows.parquet", tmp_path / "s", ConvertConfig(shuffle=True, samples_per_shard=7))
    assert shuffled.num_samples == 12
    assert read_back(tmp_path / "s") == read_back(tmp_path / "p")
    with pytest.raises(ConfigError, match="splits train, test: choose one with --split"):
        convert(tmp_path / "hf", tmp_path / "x")


def test_damage_to_parquet_is_no_other_row(tmp_path: Path) -> None:
    pa = pytest.importorskip("pyarrow", reason="needs pyarrow: pip install 'packloom[lance]'")
    parquet = pytest.importorskip("pyarrow.parquet")
    turns = [{"role": "user", "content": "stationary"}, {"role": "assistant", "content": "a"}]
    path = tmp_path / "rows.parquet"
    parquet.write_table(pa.table({"messages": [turns]}), path, compression="NONE", write_page_checksum=True)
    path.write_bytes(path.read_bytes().replace(b"stationary", b"stationery"))
    with pytest.raises(ShardError, match=r"rows\.parquet cannot be read: .*CRC"):
        convert(path, tmp_path / "out")


def test_hugging_face_by_name(tmp_path: Path) -> None:
    """Without a network a name gives one line; a folder of ``save_to_disk`` shows the rest."""
    pytest.importorskip("datasets", reason="needs datasets: pip install 'packloom[hf]'")
    with pytest.raises(ShardError, match="'no-such-user/no-such-dataset' cannot be loaded"):
        convert("no-such-user/no-such-dataset", tmp_path / "x", ConvertConfig(kind="hf", split="train"))


def test_image_folders(image_files: list[Path], tmp_path: Path, read_back: ReadBack) -> None:
    folder = tmp_path / "pictures"
    (folder / "deep").mkdir(parents=True)
    for number, path in enumerate(image_files[:4]):
        target = folder / ("deep" if number > 1 else "") / f"{number}.v1.jpg"
        shutil.copy(path, target)
        target.with_name(f"{number}.v1.txt").write_text(f"Caption {number}\n", encoding="utf-8")
    shutil.copy(image_files[5], folder / "lonely.png")
    (folder / "words.txt").write_text("no image")
    (folder / "1.v1.txt").write_bytes(b"caf\xe9")
    report = convert(folder, tmp_path / "out", check=cook)
    assert (report.num_rows, report.num_samples) == (6, 3)
    assert bad_rows(report) == [(1, "convert.utf8"), (2, "convert.missing_file"), (3, "convert.missing_file")]
    found = read_back(tmp_path / "out").values()
    wanted = [({"caption": f"Caption {n}"}, [image_files[n].read_bytes()]) for n in (0, 2, 3)]
    assert list(found) == wanted

    (folder / "metadata.csv").write_text('file_name,text\n0.v1.jpg,"a, b"\ndeep/2.v1.jpg,c\n')
    convert(folder, tmp_path / "csv", check=cook)
    wanted = [({"caption": text}, [image_files[n].read_bytes()]) for n, text in ((0, "a, b"), (2, "c"))]
    assert list(read_back(tmp_path / "csv").values()) == wanted


def test_tars_are_cut_anew_shuffled_and_mended(
    tmp_path: Path, make_shard: Callable[..., str], read_back: ReadBack
) -> None:
    shards = tmp_path / "shards"
    for shard in range(2):  # the same keys in each
        members = [(f"{n}.txt", f"s{shard} {n}".encode()) for n in range(5)]
        make_shard(shards / f"{shard}.tar", members)
    damaged = shards / "1.tar"
    damaged.write_bytes(damaged.read_bytes()[: 512 * 9])  # within the last sample
    report = convert(shards, tmp_path / "out", ConvertConfig(samples_per_shard=4, shuffle=True))
    assert (report.num_rows, report.num_samples, bad_rows(report)) == (10, 9, [(9, "read.truncated")])
    samples = {sample["__key__"]: sample["txt"] for sample in open_dataset(tmp_path / "out")}
    wanted = {f"{s:06d}/{n}": f"s{s} {n}".encode() for s in range(2) for n in range(5)}
    del wanted["000001/4"]
    assert samples == wanted
    assert list(samples) != list(wanted)
    write_shards(({"__key__": f"k{n}", "txt": "x"} for n in range(3)), tmp_path / "own")
    convert(tmp_path / "own", tmp_path / "out2", ConvertConfig(samples_per_shard=1))
    assert [sample["__key__"] for sample in open_dataset(tmp_path / "out2")] == ["k0", "k1", "k2"]


def test_typed_parts_name_their_files(image_files: list[Path], tmp_path: Path) -> None:
    import base64  # noqa: PLC0415

    name, data = image_files[0].name, image_files[1].read_bytes()
    uri = "data:image/png;base64," + base64.b64encode(data).decode()
    parts = [
        {"type": "image", "image": name},
        {"type": "image_url", "image_url": {"url": uri, "detail": "low"}},
        {"type": "text", "text": "Compare <image>."},
        {"type": "image", "image": name},
    ]
    row = {"messages": [{"role": "user", "content": parts}, {"role": "assistant", "content": "No."}], "score": 1.5}
    (tmp_path / "rows.jsonl").write_text(json.dumps(row))
    config = ConvertConfig(media_root=str(image_files[0].parent))
    assert convert(tmp_path / "rows.jsonl", tmp_path / "out", config, check=cook).num_bad == 0
    sample = open_dataset(tmp_path / "out")[0]
    parts[0]["image"] = parts[3]["image"] = "0.jpg"
    parts[1]["image_url"] = {"url": "1.png", "detail": "low"}
    assert json.loads(sample["json"]) == row
    assert (sample["0.jpg"], sample["1.png"]) == (image_files[0].read_bytes(), data)
    assert "2.jpg" not in sample


def test_each_bad_row_is_named(image_files: list[Path], tmp_path: Path) -> None:
    name = image_files[0].name
    good: dict[str, Any] = {
        "id": "same.id/..",
        "image": name,
        "conversations": [{"from": "human", "value": "<image>?"}, {"from": "gpt", "value": "!"}],
    }
    rows: list[tuple[object, str | None]] = [
        (good, None),
        (good, None),  # an id that came before
        ({**good, "image": [name]}, None),
        ({**good, "image": [name, name]}, "cook.image_count"),
        ({**good, "image": None}, "cook.image_count"),
        ({**good, "image": "nowhere.jpg"}, "convert.missing_file"),
        ({**good, "image": str(image_files[0])}, "convert.unsafe_path"),
        ({**good, "image": f"a/../{name}"}, "convert.unsafe_path"),
        ({**good, "image": "https://host/a.jpg"}, "convert.url"),
        ({**good, "image": 7}, "convert.media_type"),
        ({**good, "image": [name, None]}, "convert.null_media"),
        ({**good, "image": "x" * 300 + ".jpg"}, "convert.missing_file"),
        ({**good, "image": "rows.txt"}, "convert.unknown_format"),
        ({**good, "image": "empty.jpg"}, "convert.empty_media"),
        ({**good, "image": "pipe.jpg"}, "convert.missing_file"),  # it would never end
        ({**good, "image": "half a pair \ud800.jpg"}, "convert.missing_file"),
        ({"id": 1, "image": name}, "cook.schema"),
        ({**good, "conversations": "no list"}, "convert.json"),
        ({**good, "conversations": 3}, "cook.messages"),
        ({**good, "note": float("nan")}, "write.part_value"),
        ([good], "convert.row"),
    ]
    root = tmp_path / "root"
    root.mkdir()
    shutil.copy(image_files[0], root / name)
    (root / "rows.txt").write_text("<!DOCTYPE html>")
    (root / "empty.jpg").write_bytes(b"")
    os.mkfifo(root / "pipe.jpg")
    lines = [json.dumps(row).encode() for row, _ in rows] + [b'{"id": "\xff"}', b'{"id": ']
    (root / "rows.jsonl").write_bytes(b"\n".join(lines))
    report = convert(root / "rows.jsonl", tmp_path / "out", check=cook)
    wanted = [*(code for _, code in rows), "convert.utf8", "convert.json"]
    assert bad_rows(report) == [(place, code) for place, code in enumerate(wanted) if code is not None]
    assert (report.num_rows, report.num_samples, report.num_bad) == (23, 3, 20)
    keys = [sample["__key__"] for sample in open_dataset(tmp_path / "out")]
    assert keys == ["000000000", "000000001", "000000002"]


def test_what_cannot_be_converted_is_one_line(tmp_path: Path, llava: Path) -> None:
    def refuse(source: object, match: str, kind: type[Exception] = ShardError, **config: Any) -> None:
        with pytest.raises(kind, match=match):
            convert(str(source), tmp_path / "out", ConvertConfig(**config))

    def file(name: str, text: str) -> Path:
        path = tmp_path / name
        path.write_text(text)
        return path

    refuse(tmp_path / "nowhere", "does not exist")
    refuse(file("a.bin", "x"), "is not understood")
    refuse(file("empty.jsonl", ""), "holds no rows")
    refuse(file("empty.json", "[]"), "holds no rows")
    refuse(file("cut.json", '[{"question": "q", "answer": "a"}, {"question'), "is cut off")
    refuse(file("mixed.json", '[{"a": 1}, 5, {"a": 2}]'), "stands b', 5,' where a row is due")
    refuse(file("tail.json", '[{"a": 1}] {"a": 2}'), "goes on behind its array")
    refuse(file("object.json", '{\n "rows": []\n}'), "holds one JSON object, but one JSON object per line")
    refuse(file("other.jsonl", '{"a": 1}'), "no column looks like a conversation.*a .number.", ConfigError)
    refuse(llava, "there is no field 'chat'", ConfigError, columns=(("chat", "x"),))
    refuse(llava, "media root .* is no folder", ConfigError, media_root=str(tmp_path / "nowhere"))
    refuse(llava, "filter is for Lance", ConfigError, filter="x = 1")
    refuse(llava, "samples_per_shard must be at least 1", ConfigError, samples_per_shard=0)
    refuse(file("bad.jsonl", "{\n{\n"), "no column looks like a conversation", ConfigError)
    lost = file("lost.jsonl", '{"caption": "x", "image": "gone.jpg"}\n{"caption": "x"}\n' * 3)
    with pytest.raises(TooManyErrors, match=r"none of 6 rows .*convert.missing_file \(3 times\), e.g. row 0: .*gone"):
        convert(lost, tmp_path / "out", check=cook)
