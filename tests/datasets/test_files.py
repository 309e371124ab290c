"""Byte ranges of local files and urls: the same samples from both, failures as OSError, passing ones tried again."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import packloom.datasets.files as files
from packloom.datasets import build_index, open_dataset
from packloom.datasets.files import Files, read_file, status, write_file
from packloom.datasets.paths import expand_braces, join, normalise, split
from packloom.errors import CapabilityError, ReadError, ShardError

fsspec = pytest.importorskip("fsspec", reason="fsspec is not installed: reads urls")


@pytest.fixture
def bucket(shards: Path) -> Iterator[str]:
    """The shards in a file system that is in memory."""
    memory = fsspec.filesystem("memory")
    for path in shards.glob("*.tar"):
        memory.pipe_file(f"/bucket/{path.name}", path.read_bytes())
    yield "memory://bucket"
    memory.rm("/bucket", recursive=True)


def without_url(samples: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [{name: data for name, data in sample.items() if name != "__url__"} for sample in samples]


def test_a_bucket_is_indexed_and_read_like_a_folder(bucket: str, shards: Path) -> None:
    local = build_index(shards).manifests[str(shards)]
    report = build_index(bucket)
    assert report.manifests[bucket].fingerprint == local.fingerprint
    assert build_index(bucket).num_skipped == 3
    dataset, expected = open_dataset(bucket), without_url(list(open_dataset(shards)))
    assert without_url(list(dataset)) == expected
    assert without_url(dataset.read_many([7, 0, 3])) == [expected[7], expected[0], expected[3]]
    assert dataset[0]["__url__"] == "memory://bucket/a.tar"
    assert dataset.read(0, 1, parts=("txt",))["txt"] == b""  # no bytes at all
    assert without_url(list(open_dataset(f"{bucket}/{{c,b}}.tar"))) == [*expected[5:], expected[4]]


def test_an_index_of_a_bucket_may_be_local_and_of_a_folder_in_a_bucket(
    bucket: str, shards: Path, tmp_path: Path
) -> None:
    build_index(f"{bucket}/{{a,b,c}}.tar", index_dir=tmp_path / "index")  # no listing needed
    assert len(open_dataset(bucket, index_dir=tmp_path / "index")) == 8
    build_index(shards, index_dir="memory://bucket/index")
    assert len(open_dataset(shards, index_dir="memory://bucket/index")) == 8


def test_a_changed_object_is_stale_or_a_read_error(bucket: str) -> None:
    build_index(bucket)
    memory = fsspec.filesystem("memory")
    content = memory.cat_file("/bucket/c.tar")
    memory.pipe_file("/bucket/c.tar", content.replace(b'"n": 2', b'"n": 9'))
    dataset = open_dataset(bucket)
    assert isinstance(dataset.read_many([7])[0], ReadError)
    memory.pipe_file("/bucket/c.tar", content + bytes(512))
    with pytest.raises(ShardError, match=r"c\.tar is not what was indexed.*packloom index memory://bucket"):
        open_dataset(bucket)[7]
    memory.rm_file("/bucket/c.tar")
    with pytest.raises(ReadError, match="cannot be opened"):
        open_dataset(bucket)[7]


class Server:
    """A file system whose calls go to ``answer(number of the call)``."""

    def __init__(self, answer: Any) -> None:
        self.answer = answer
        self.calls = 0

    def _strip_protocol(self, path: str) -> str:
        return path

    def cat_ranges(self, paths: list[str], starts: list[int], stops: list[int], on_error: str) -> list[Any]:
        self.calls += 1
        return [self.answer(self.calls) for _ in paths]

    def size(self, path: str) -> Any:
        self.calls += 1
        return self.answer(self.calls)


@pytest.fixture
def serve(monkeypatch: pytest.MonkeyPatch):
    def start(answer: Any) -> Server:
        server = Server(answer)
        monkeypatch.setattr(files, "_file_system", lambda path: (server, path))
        monkeypatch.setattr(files, "_FIRST_PAUSE", 0)
        return server

    return start


def test_a_passing_failure_is_tried_again(serve) -> None:
    server = serve(lambda call: b"abc" if call == 3 else RuntimeError("connection lost"))
    assert Files().read_ranges([("s3://b/x", 5, 8)]) == [b"abc"]
    assert server.calls == 3


@pytest.mark.parametrize(
    ("answer", "calls", "match"),
    [
        (RuntimeError("connection lost"), 3, "s3://b/x: RuntimeError: connection lost"),
        (FileNotFoundError("s3://b/x"), 1, "s3://b/x"),
        (PermissionError("forbidden"), 1, "forbidden"),
        (b"the whole file", 3, "sent 14 bytes for a range of 3"),
    ],
)
def test_a_lasting_failure_is_an_os_error(serve, answer: Any, calls: int, match: str) -> None:
    server = serve(lambda call: answer)
    [result] = Files().read_ranges([("s3://b/x", 5, 8)])
    assert isinstance(result, OSError)
    assert match in str(result)
    assert server.calls == calls


def test_a_server_that_tells_no_size(serve) -> None:
    serve(lambda call: None)
    with pytest.raises(OSError, match="does not tell its size"):
        status("http://host/x.tar")


def test_a_missing_back_end_is_named() -> None:
    pytest.importorskip("fsspec")
    if "s3" in fsspec.available_protocols():
        try:
            import s3fs  # noqa: F401, PLC0415
        except ImportError:
            with pytest.raises(CapabilityError, match=r"s3://b/x cannot be read: .*s3fs"):
                read_file("s3://b/x")


def test_local_ranges_end_with_the_file(tmp_path: Path) -> None:
    (tmp_path / "x").write_bytes(b"0123456789")
    path = str(tmp_path / "x")
    found = Files().read_ranges([(path, 2, 5), (path, 8, 20), (path, 3, 3), (str(tmp_path / "y"), 0, 1), (path, 0, 2)])
    assert isinstance(found[3], FileNotFoundError)
    assert [found[n] for n in (0, 1, 2, 4)] == [b"234", b"89", b"", b"01"]


def test_a_file_is_written_whole_or_not_at_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    target = tmp_path / "new" / "x"
    write_file(str(target), b"old")

    def fail(*paths: object) -> None:
        raise OSError("disk full")

    monkeypatch.setattr("os.replace", fail)
    with pytest.raises(OSError, match="disk full"):
        write_file(str(target), b"new")
    assert [path.name for path in target.parent.iterdir()] == ["x"]
    assert target.read_bytes() == b"old"


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("a/b/", "a/b"),
        ("./a//b", "a/b"),
        ("file:///a/b.tar", "/a/b.tar"),
        ("s3://bucket/a/", "s3://bucket/a"),
        ("memory://x", "memory://x"),
        ("C:x", "C:x"),
    ],
)
def test_spellings(path: str, expected: str) -> None:
    assert normalise(path) == expected


@pytest.mark.parametrize(
    "path", ["-", "pipe:cat x", "pipe://x", "ssh://h/x", "simplecache::s3://b/x", "zip://x::s3://b/y", "s3://${B}/x"]
)
def test_streams_commands_and_chains_are_refused(path: str) -> None:
    with pytest.raises(ShardError):
        normalise(path)


def test_names_stay_in_their_folder() -> None:
    assert join("a", "b/c.tar") == "a/b/c.tar"
    assert join("s3://a", "b.tar") == "s3://a/b.tar"
    assert [split(path) for path in ("a/b.tar", "b.tar", "/b.tar", "s3://a/b.tar")] == [
        ("a", "b.tar"), (".", "b.tar"), ("/", "b.tar"), ("s3://a", "b.tar")
    ]  # fmt: skip
    for name in ("../x", "/x", "a/../x", "", "a\\x", "./x", "a\0"):
        with pytest.raises(ShardError, match="no plain relative name"):
            join("a", name)


def test_brace_patterns() -> None:
    assert expand_braces("a/{00..02}.tar") == ["a/00.tar", "a/01.tar", "a/02.tar"]
    assert expand_braces("a.tar") == ["a.tar"]
    with pytest.raises(ShardError, match="malformed"):
        expand_braces("a/{0..2.tar")
    with pytest.raises(ShardError, match="environment variable"):
        expand_braces("${HOME}/{a,b}.tar")
