"""Names and texts that are no UTF-8, and keys with a ``./`` in front, cost no other row."""

from __future__ import annotations

import json
import tarfile
from collections.abc import Callable
from pathlib import Path

import pytest

from packloom.datasets import open_dataset
from packloom.datasets.convert import ConvertConfig, ConvertReport, convert
from packloom.errors import ShardError

MakeShard = Callable[..., str]


def bad_rows(report: ConvertReport) -> list[tuple[int, str, str]]:
    if report.quarantine is None:
        return []
    lines = report.quarantine.read_text(encoding="utf-8").splitlines()
    return [(item["row"], item["key"], item["code"]) for item in map(json.loads, lines)]


def keys(folder: Path) -> list[str]:
    return [sample["__key__"] for sample in open_dataset(folder)]


@pytest.mark.parametrize("format", [tarfile.GNU_FORMAT, tarfile.PAX_FORMAT])
def test_names_of_members_that_are_no_utf8(format: int, tmp_path: Path, make_shard: MakeShard) -> None:
    names = ["a.txt", "bad\udcff.txt", "c.t\udcff", "../\udcfe.txt", "d.txt"]  # key, part, and key of a fault
    make_shard(tmp_path / "s\udcff" / "in.tar", [(name, b"x") for name in names], format=format)
    for _ in range(2):  # the second run reads what the first one noted
        report = convert(tmp_path / "s\udcff", tmp_path / "out")
        assert keys(tmp_path / "out") == ["a", "d"]
        assert bad_rows(report) == [
            (1, "bad\\udcff", "write.key"),
            (2, "c", "write.part_name"),
            (4, "../\\udcfe", "read.unsafe_key"),
        ]
    assert report.was_finished


def test_names_of_columns_that_are_no_utf8(tmp_path: Path) -> None:
    rows = [{"question": "q", "answer": "a", "\udcff": n or None} for n in range(2)]
    (tmp_path / "rows.jsonl").write_text("\n".join(map(json.dumps, rows)))
    for _ in range(2):  # the second run compares its plan with that of the first
        report = convert(tmp_path / "rows.jsonl", tmp_path / "out")
        assert (report.num_samples, bad_rows(report)) == (1, [(1, "000000001", "write.part_value")])


def test_a_dot_and_a_slash_in_front_of_keys_are_dropped(tmp_path: Path, make_shard: MakeShard) -> None:
    names = ["./", "./s0.json", "./s0.0.jpg", "././sub/s1.json", ".//s2.json", "./../s3.json", "sub/./s4.json"]
    make_shard(tmp_path / "in/a.tar", [(name, b"{}") for name in names if name != "./"])
    report = convert(tmp_path / "in", tmp_path / "out")
    assert keys(tmp_path / "out") == ["s0", "sub/s1"]
    assert open_dataset(tmp_path / "out")[0]["0.jpg"] == b"{}"
    assert bad_rows(report) == [
        (2, "/s2", "write.key"),
        (3, "sub/./s4", "write.key"),
        (4, "./../s3", "read.unsafe_key"),
    ]


def test_keys_that_fall_together_stay_apart(tmp_path: Path, make_shard: MakeShard) -> None:
    make_shard(tmp_path / "two/a.tar", [("./s.txt", b"0"), ("./t.txt", b"1")])
    make_shard(tmp_path / "two/b.tar", [("s.txt", b"2")])
    assert convert(tmp_path / "two", tmp_path / "out").num_bad == 0
    assert keys(tmp_path / "out") == ["000000/s", "000000/t", "000001/s"]  # as where both are named s
    make_shard(tmp_path / "one/a.tar", [("./s.txt", b"0"), ("s.json", b"1"), ("./t.txt", b"2")])
    make_shard(tmp_path / "one/b.tar", [("s.txt", b"3")])
    report = convert(tmp_path / "one", tmp_path / "out1")
    assert bad_rows(report) == [(0, "./s", "convert.ambiguous_key"), (1, "s", "convert.ambiguous_key")]
    assert {sample["__key__"]: sample["txt"] for sample in open_dataset(tmp_path / "out1")} == {
        "000000/t": b"2",
        "000001/s": b"3",
    }


def test_texts_of_tables_that_are_no_utf8(tmp_path: Path) -> None:
    pa = pytest.importorskip("pyarrow", reason="needs pyarrow: pip install 'packloom[lance]'")
    parquet = pytest.importorskip("pyarrow.parquet")
    hf = pytest.importorskip("datasets", reason="needs datasets: pip install 'packloom[hf]'")
    ends = pa.array(range(5), pa.int32()).buffers()[1]
    broken = pa.StringArray.from_buffers(4, ends, pa.py_buffer(b"ab\xffd"))
    nested = pa.StructArray.from_arrays([broken], ["content"])
    for name, column in (("answer", broken), ("extra", nested)):
        table = pa.table({"question": ["q"] * 4, "answer": ["a"] * 4} | {name: column})
        parquet.write_table(table, tmp_path / f"{name}.parquet", row_group_size=1)
        hf.Dataset(table).save_to_disk(str(tmp_path / f"{name}-hf"))
        for source in (f"{name}.parquet", f"{name}-hf"):
            with pytest.raises(ShardError, match=rf"{source} cannot be read: row 2, column '{name}': 'utf-8' codec"):
                convert(tmp_path / source, tmp_path / f"out-{source}")


def test_images_in_dictionaries(tmp_path: Path, make_image: Callable[..., bytes]) -> None:
    pa = pytest.importorskip("pyarrow", reason="needs pyarrow: pip install 'packloom[lance]'")
    parquet = pytest.importorskip("pyarrow.parquet")
    images = [make_image(4, 4), make_image(5, 5, "PNG"), None, make_image(4, 4)]
    table = pa.table({"caption": list("abcd"), "photo": pa.array(images).dictionary_encode()})
    parquet.write_table(table, tmp_path / "t.parquet")
    for shuffle in (False, True):
        convert(tmp_path / "t.parquet", tmp_path / f"out{shuffle}", ConvertConfig(shuffle=shuffle))
        found = {
            s["__key__"]: [s[name] for name in s if name[0] == "0"] for s in open_dataset(tmp_path / f"out{shuffle}")
        }
        assert found == {f"{n:09d}": [image] if image else [] for n, image in enumerate(images)}
