"""Nothing that comes out of a shard or a settings file runs, leaves its folder, or takes more than it may."""

from __future__ import annotations

import ast
import io
import json
import os
import pickle
import re
import struct
import tarfile
import tracemalloc
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from PIL import ImageFile

import packloom
from packloom.datasets import build_index, open_dataset, read_shard
from packloom.datasets.tar_walk import ShardFile
from packloom.errors import ConfigError, CookError, ReadError, ShardError
from packloom.task_encoders.cookers import cook

SOURCE = Path(packloom.__file__).parent
ROW = json.dumps({"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]}).encode()


class Touch:
    """Unpickling it makes a file."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, (str(self.path),)


def tar(path: Path, members: list[tuple[str, bytes]]) -> str:
    path.parent.mkdir(parents=True, exist_ok=True)
    with tarfile.open(path, "w") as archive:
        for name, data in members:
            info = tarfile.TarInfo(name)
            info.size = len(data)
            archive.addfile(info, io.BytesIO(data))
    return str(path)


def test_pickles_in_a_shard_stay_bytes(tmp_path: Path) -> None:
    data = pickle.dumps(Touch(tmp_path / "ran"))
    names = ("pyd", "pkl", "pickle", "pth", "npy", "cls", "ten")
    shard = tar(tmp_path / "s" / "0.tar", [("a.json", ROW), *((f"a.{name}", data) for name in names), ("b.pkl", data)])
    build_index(tmp_path / "s")
    for samples in (list(read_shard(shard)), list(open_dataset(tmp_path / "s"))):
        assert all(samples[0][name] == data for name in names)
        assert cook(samples[0]).messages[1].text == "b"
        with pytest.raises(CookError):  # there is nothing in it that is read
            cook(samples[1])
    assert not (tmp_path / "ran").exists()


#: Calls that run what they are given, or unpickle it.
FORBIDDEN = {
    *(f"pickle.{name}" for name in ("load", "loads", "Unpickler")),
    *(f"torch.{name}" for name in ("load", "hub.load")),
    *(f"os.{name}" for name in ("system", "popen", "execv", "spawnv")),
    *(f"yaml.{name}" for name in ("unsafe_load", "full_load", "load_all")),
    *("eval", "exec", "__import__", "np.load", "numpy.load", "joblib.load", "marshal.loads", "shelve.open"),
}


def calls(path: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Call):
            yield ast.unparse(node.func)
        if isinstance(node, (ast.Import, ast.ImportFrom)):
            yield from (alias.name for alias in node.names)


def test_the_package_calls_nothing_that_runs_data() -> None:
    files = sorted(SOURCE.rglob("*.py"))
    assert len(files) > 50
    found = {(path.name, name) for path in files for name in calls(path)}
    assert not {item for item in found if item[1] in FORBIDDEN}
    assert not {item for item in found if item[1] in ("subprocess", "marshal", "shelve", "joblib", "cloudpickle")}
    assert {name for name, call in found if call == "yaml.load"} == {"blend_yaml.py"}  # with a subclass of SafeLoader
    assert not {item for item in found if item[1].endswith((".extractall", ".extract"))}  # no member becomes a file


@pytest.mark.parametrize("place", ["path", "list", "config", "blend", "aux", "energon"])
def test_commands_are_never_run(tmp_path: Path, encoder_stub: Any, place: str) -> None:
    command = f"pipe:touch {tmp_path}/ran"
    shards = tmp_path / "s"
    tar(shards / "0.tar", [("a.json", ROW)])
    build_index(shards)
    source: Any = {"path": command, "list": [str(shards), command]}.get(place, str(shards))
    settings: dict[str, Any] = {"aux": {"media": command}} if place == "aux" else {}
    if place in ("config", "blend"):
        source = str(tmp_path / f"{place}.yaml")
        key = "source: {path" if place == "config" else "blend: [{path"
        end = "}" if place == "config" else "}]"
        Path(source).write_text(f"{key}: '{command}'{end}\n")
    if place == "energon":
        (shards / ".nv-meta").mkdir()
        (shards / ".nv-meta" / ".info.json").write_text(json.dumps({"shard_counts": {command: 1}}))
        (shards / ".nv-meta" / "split.yaml").write_text(f"split_parts: {{train: ['{command}']}}")
    if place == "config":
        source = packloom.DataConfig.from_yaml(source)
    with pytest.raises((ShardError, ConfigError), match="pipe:"):
        packloom.build_loader(source, encoder_stub, **settings)
    assert not (tmp_path / "ran").exists()


@pytest.fixture
def encoder_stub() -> Any:
    class Stub:
        max_length = 8

    return Stub()


def test_settings_files_run_nothing(tmp_path: Path) -> None:
    path = tmp_path / "data.yaml"
    for text, message in (
        (f"source: !!python/object/apply:os.mkdir ['{tmp_path}/ran']", "is not plain YAML"),
        ("source: {path: s, __function__: os.system}", "unknown key"),
        ("__module__: os\nsource: {path: s}", "unknown key"),
    ):
        path.write_text(text)
        with pytest.raises(ConfigError, match=message):
            packloom.DataConfig.from_yaml(path)
    assert not (tmp_path / "ran").exists()


def test_keys_that_would_leave_their_folder(tmp_path: Path) -> None:
    members = [("../../evil.json", ROW), ("/etc/evil.json", ROW), ("a/../b/evil.json", ROW), ("good.json", ROW)]
    shard = tar(tmp_path / "s" / "0.tar", members)
    build_index(tmp_path / "s")
    outcomes = [item.code if isinstance(item, ReadError) else item["__key__"] for item in read_shard(shard)]
    assert outcomes == ["read.unsafe_key"] * 3 + ["good"]
    dataset = open_dataset(tmp_path / "s")
    assert [fault.code for _, fault in dataset.faults()] == ["read.unsafe_key"] * 3
    assert dataset.keys(0) == ["good"]


def huge(path: Path, claim: int) -> str:
    """A good sample, and one whose header claims more bytes than there are."""
    tar(path, [("a.json", ROW), ("b.json", ROW)])
    data = bytearray(path.read_bytes())
    header = tarfile.TarInfo("b.json")
    header.size = claim
    data[1024:1536] = header.tobuf(tarfile.GNU_FORMAT)
    path.write_bytes(data)
    return str(path)


def test_a_member_of_ten_gigabytes(tmp_path: Path) -> None:
    shard = huge(tmp_path / "s" / "0.tar", 10 << 30)
    tracemalloc.start()
    build_index(tmp_path / "s")
    streamed = list(read_shard(shard))
    indexed = open_dataset(tmp_path / "s")
    samples = list(indexed)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert [type(item) for item in streamed] == [dict, ReadError]
    assert streamed[1].code == "read.truncated"
    assert [sample["__key__"] for sample in samples] == ["a"]
    assert [fault.code for _, fault in indexed.faults()] == ["read.truncated"]
    assert peak < 100 << 20


def header(name: bytes, kind: bytes, size: bytes = b"00000000001") -> bytes:
    """A tar header with a right checksum."""
    block = bytearray(name.ljust(124, b"\0") + size.ljust(12, b"\0") + b" " * 20 + kind).ljust(512, b"\0")
    block[257:265] = b"ustar\00000"
    return bytes(block[:148] + b"%06o\0 " % sum(block) + block[156:])


def pax(text: bytes) -> bytes:
    return header(b"p", b"x", b"%011o" % len(text)) + text.ljust(-(-len(text) // 512) * 512, b"\0")


EXPLOITS = {
    "symbolic link": (header(b"b.0.jpg", b"2", b"0"), "read.special_member"),
    "hard link": (header(b"b.0.jpg", b"1", b"0"), "read.special_member"),
    "device": (header(b"b.0.jpg", b"3", b"0"), "read.special_member"),
    "sparse": (header(b"b.0.jpg", b"S") + bytes(512), "read.special_member"),
    "name with NUL": (pax(b"17 path=b.0\0.jpg\n") + header(b"b", b"0") + bytes(512), "read.unsafe_key"),
    "absolute name": (pax(b"15 path=/b.jpg\n") + header(b"b", b"0") + bytes(512), "read.unsafe_key"),
    "drive": (header(b"C:\\b.jpg", b"0") + bytes(512), "read.unsafe_key"),
    "long name of 8 GB": (header(b"b", b"L", b"77777777777") + bytes(512), "read.header"),
    "extended header of 8 GB": (header(b"b", b"x", b"77777777777") + bytes(512), "read.header"),
    "negative size": (pax(b"14 size=-1024\n") + header(b"b.jpg", b"0") + bytes(512), "read.header"),
    "3000 headers in a chain": (
        (header(b"b", b"L") + b"b".ljust(512, b"\0")) * 3000 + header(b"b", b"0") + bytes(512),
        "read.header",
    ),
    "300 headers, again and again": (
        ((header(b"b", b"L") + b"b".ljust(512, b"\0")) * 300 + bytes(512)) * 8,
        "read.header",
    ),
}


@pytest.mark.parametrize("name", EXPLOITS)
def test_members_that_are_no_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """Refused, whether an index is made or not, in few steps, and the samples before and behind arrive or are named."""
    data, code = EXPLOITS[name]
    reads: list[int] = []
    original = ShardFile.read
    monkeypatch.setattr(ShardFile, "read", lambda self, size=-1: reads.append(size) or original(self, size))
    good = {key: header(key.encode() + b".json", b"0") + b"1".ljust(512, b"\0") for key in "ac"}
    path = tmp_path / "s" / "s.tar"
    path.parent.mkdir()
    path.write_bytes(good["a"] + data + good["c"] + bytes(10240))
    items = list(read_shard(str(path)))
    found = {item.key if isinstance(item, ReadError) else item["__key__"] for item in items}
    assert {item.code for item in items if isinstance(item, ReadError)} == {code}
    assert found >= {"a", "c"}
    assert max(reads) <= 1 << 20
    assert len(reads) < 4 * len(data) // 512 + 100
    assert len(items) < 20
    monkeypatch.undo()
    build_index(path.parent)
    dataset = open_dataset(path.parent)
    assert {raw["__key__"] for raw in dataset} == {item["__key__"] for item in items if isinstance(item, dict)}
    assert {fault.code for _, fault in dataset.faults()} == {code}


def test_members_over_the_limit(tmp_path: Path) -> None:
    """The bytes are there, but are not read."""
    shard = tmp_path / "s" / "0.tar"
    tar(shard, [("a.json", ROW)])
    head = tarfile.TarInfo("b.bin")
    head.size = 2 << 30
    with shard.open("r+b") as file:
        file.seek(1024)
        file.write(head.tobuf(tarfile.GNU_FORMAT))
        file.truncate(1024 + 512 + head.size + 1024)  # a hole, which takes no room on disk
    [good, bad] = list(read_shard(str(shard)))
    assert (good["__key__"], bad.code) == ("a", "read.member_too_large")


def bomb(width: int, height: int) -> bytes:
    """A PNG of a few bytes that claims a large image."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    pixels = zlib.compress(bytes(1 << 16))
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", pixels) + chunk(b"IEND", b"")


def test_decompression_bombs_are_not_decoded(
    tmp_path: Path, processor_dir: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    content = [{"type": "image", "image": "0.png"}, {"type": "text", "text": "what?"}]
    row = json.dumps({"messages": [{"role": "user", "content": content}, {"role": "assistant", "content": "x"}]})
    members = []
    for key, size in (("a", (9_500, 9_500)), ("b", (60_000, 60_000))):  # over our limit, and over Pillow's own
        members += [(f"{key}.json", row.encode()), (f"{key}.0.png", bomb(*size))]
    tar(tmp_path / "s" / "0.tar", [*members, ("c.json", ROW)])
    build_index(tmp_path / "s")

    def load(image: Any) -> None:
        raise AssertionError("decoded")

    monkeypatch.setattr(ImageFile.ImageFile, "load", load)
    encoder = packloom.TaskEncoder.from_pretrained(processor_dir("qwen2_5_vl"), max_length=4096)
    loader = packloom.build_loader(str(tmp_path / "s"), encoder, epochs=1)
    assert [key for batch in loader for key in batch["sample_keys"]] == ["c"]
    assert {record.key: record.code for record in loader.skip_records} == {
        "a": "budget.pixels",
        "b": "media.too_many_pixels",
    }


def test_the_examples_of_the_document(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    document = SOURCE.parents[1] / "docs" / "security.md"
    blocks = re.findall(r"^```python\n(.*?)^```", document.read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE)
    assert len(blocks) == 2
    monkeypatch.chdir(tmp_path)
    tar(tmp_path / "unknown" / "0.tar", [("../evil.json", ROW), ("a.json", ROW), ("b.txt", b"x"), ("b.TXT", b"y")])
    names: dict[str, Any] = {}
    for block in blocks:
        exec(compile(block, str(document), "exec"), names)  # noqa: S102 - our own document
    out = capsys.readouterr().out
    assert "0.tar read.unsafe_key ../evil" in out
    assert "0.tar read.case_collision b" in out
    assert "blend[0].__function__: 'os.system' refers to code" in out
