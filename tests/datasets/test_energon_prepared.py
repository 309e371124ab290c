"""Folders that Energon prepared open as they are: their split parts, exclusions, and the samples it would give."""

from __future__ import annotations

import json
import struct
import subprocess
import sys
import tarfile
from pathlib import Path
from typing import Any

import pytest
import yaml

from packloom.datasets import build_index, open_dataset, read_shard
from packloom.errors import ConfigError, ReadError, ShardError


def prepare(folder: Path, splits: dict[str, Any], counts: dict[str, int] | None = None) -> Path:
    """Write what ``energon prepare`` writes, as far as it is read."""
    found: dict[str, int] = {}
    for path in sorted(folder.rglob("*.tar")):
        offsets: list[int] = []
        keys: list[str] = []
        with tarfile.open(path) as tar:
            for member in tar:
                key = member.name.rpartition("/")[0] + "/" + member.name.rpartition("/")[2].split(".")[0]
                if not keys or keys[-1] != key:
                    keys.append(key)
                    offsets.append(member.offset)
            end = tar.offset
        path.with_suffix(".tar.idx").write_bytes(struct.pack(f"={len(offsets) + 1}Q", *offsets, end))
        found[str(path.relative_to(folder))] = len(keys)
    (folder / ".nv-meta").mkdir()
    (folder / ".nv-meta" / ".info.json").write_text(json.dumps({"shard_counts": counts or found}))
    (folder / ".nv-meta" / "split.yaml").write_text(yaml.safe_dump(splits))
    return folder


ALL = {"split_parts": {"train": ["{a,b,c}.tar"], "val": ["c.tar"], "test": []}}


def keys(dataset: Any) -> list[str]:
    return [sample["__key__"] for sample in dataset]


def test_samples_are_those_of_read_shard(shards: Path) -> None:
    dataset = open_dataset(prepare(shards, ALL))
    expected = [sample for name in "abc" for sample in read_shard(str(shards / f"{name}.tar"))]
    assert list(dataset) == expected
    assert dataset.read_many([7, 2]) == [expected[7], expected[2]]
    assert dataset.key(0, 1) == "a/1"
    assert dataset.part_names(0, 1) == ("json", "0.jpg", "txt")
    assert dataset.read(0, 1, parts=("txt",)) == {"__key__": "a/1", "__url__": str(shards / "a.tar"), "txt": b""}
    with pytest.raises(ReadError, match=r"no part 'png', only json, 0\.jpg"):
        dataset.read(0, 0, parts=("png",))


def test_split_parts_in_their_order(shards: Path) -> None:
    prepare(shards, {"split_parts": {"train": ["c.tar", "a.tar"], "val": ["b.tar"]}})
    assert open_dataset(shards).num_shards == 2
    assert keys(open_dataset(shards))[0] == "c/0"
    assert keys(open_dataset(shards, split_part="val")) == ["b/0"]
    with pytest.raises(ShardError, match="no split part 'test'; it has train, val"):
        open_dataset(shards, split_part="test")


def test_excluded_shards_and_samples(shards: Path) -> None:
    prepare(shards, {**ALL, "exclude": ["b.tar", "a.tar/a/{0,3}", "c.tar/c/1", "elsewhere.tar/x"]})
    dataset = open_dataset(shards)
    assert [key[:3] for key in keys(dataset)] == ["a/1", "a/ü", "c/0", "c/ü"]
    assert [dataset.locate(position) for position in range(4)] == [(0, 0), (0, 1), (1, 0), (1, 1)]
    assert dataset.key(0, 0) == "a/1"
    other = json.loads((shards / ".nv-meta" / ".info.json").read_text())
    (shards / ".nv-meta" / "split.yaml").write_text(yaml.safe_dump({**ALL, "exclude": ["b.tar", "a.tar/a/0"]}))
    assert other
    assert open_dataset(shards).fingerprint != dataset.fingerprint


def test_shards_in_folders(shards: Path) -> None:
    (shards / "parts").mkdir()
    for name in ("a", "b"):
        (shards / f"{name}.tar").rename(shards / "parts" / f"{name}.tar")
    splits = {"split_parts": {"train": ["parts/{a..b}.tar"]}, "exclude": ["parts/a.tar/a/0"]}
    assert [key[:3] for key in keys(open_dataset(prepare(shards, splits)))] == ["a/1", "a/ü", "a/3", "b/0"]
    report = build_index(shards)  # all that Energon knows
    assert (report.num_samples, len(report.manifests[str(shards)].shards)) == (8, 3)
    assert [key[:3] for key in keys(open_dataset(shards))] == ["a/1", "a/ü", "a/3", "b/0"]


def test_an_index_of_ours_keeps_the_split(shards: Path) -> None:
    prepare(shards, {"split_parts": {"train": ["a.tar"], "val": ["b.tar", "c.tar"]}})
    through_theirs = list(open_dataset(shards))
    build_index(shards)
    dataset = open_dataset(shards)
    assert list(dataset) == through_theirs
    assert dataset.image_size(0, 0, "0.jpg") == (30, 20)  # now it is known
    assert len(open_dataset(shards, split_part="val")) == 4
    assert len(open_dataset(shards / "c.tar")) == 3  # a shard by its name needs no split part


def test_the_fingerprint_tells_folders_of_equal_names_and_counts_apart(shards: Path, tmp_path: Path) -> None:
    prepare(shards, ALL)
    before = open_dataset(shards).fingerprint
    shards.rename(tmp_path / "moved")
    assert open_dataset(tmp_path / "moved").fingerprint == before
    idx = tmp_path / "moved" / "c.tar.idx"
    idx.write_bytes(idx.read_bytes()[:-8] + struct.pack("=Q", 1 << 13))
    assert open_dataset(tmp_path / "moved").fingerprint != before
    (tmp_path / "moved" / ".nv-meta" / "index.uuid").write_text("1234")
    assert len({open_dataset(tmp_path / "moved").fingerprint, before}) == 2


def test_damage_is_told(shards: Path) -> None:
    prepare(shards, ALL, counts={"a.tar": 4, "b.tar": 1, "c.tar": 2})
    dataset = open_dataset(shards)
    with pytest.raises(ShardError, match=r"c\.tar\.idx does not hold 2 samples as \.info\.json says: prepare"):
        dataset[6]
    content = bytearray((shards / "a.tar").read_bytes())
    content[0:512] = bytes(512)  # the first header
    (shards / "a.tar").write_bytes(content)
    with pytest.raises(ReadError) as caught:
        dataset[0]
    assert (caught.value.key, caught.value.offset) == ("a/0", 0)  # its other members tell the key
    assert dataset[1]["__key__"] == "a/1"
    (shards / "b.tar").write_bytes((shards / "b.tar").read_bytes()[:512])
    with pytest.raises(ReadError, match="the shard ends within it") as caught:
        dataset[4]
    facts = caught.value.key, caught.value.code, caught.value.offset
    assert facts == (f"{shards / 'b.tar'}#0", "read.truncated", 0)


@pytest.mark.parametrize(
    ("name", "content", "match"),
    [
        (".info.json", "{}", "no shard counts"),
        (".info.json", "{", "is damaged"),
        ("split.yaml", "a: [", "is damaged"),
        ("split.yaml", "a: 1", "no split_parts"),
        ("split.yaml", "split_parts: {train: [x.tar]}", r"names shard x\.tar, which .*does not know"),
        ("split.yaml", "split_parts: {train: [a.tar, a.tar]}", "twice"),
        ("split.yaml", "split_parts: {train: []}", "'train' is empty"),
        ("split.yaml", "split_parts: {train: [a.tar]}\nexclude: 3", "exclude must be a list"),
        (".info.json", '{"shard_counts": {"../a.tar": 1, "a.tar": 1, "b.tar": 1, "c.tar": 1}}', None),
        ("split.yaml", "split_parts: {train: [!!python/name:os.system ]}", "is damaged"),
    ],
)
def test_meta_files_that_contradict_are_refused(shards: Path, name: str, content: str, match: str | None) -> None:
    prepare(shards, ALL)
    (shards / ".nv-meta" / name).write_text(content)
    if match is None:  # a name that leaves the folder does no harm until a split part takes it
        (shards / ".nv-meta" / "split.yaml").write_text("split_parts: {train: [../a.tar]}")
        match = "no plain relative name"
    with pytest.raises(ShardError, match=match):
        open_dataset(shards)


def test_a_split_part_of_a_folder_without_any(shards: Path) -> None:
    build_index(shards)
    with pytest.raises(ConfigError, match="not prepared by Energon"):
        open_dataset(shards, split_part="val")


def test_code_in_the_folder_is_not_run(shards: Path, tmp_path: Path) -> None:
    prepare(shards, ALL)
    (shards / ".nv-meta" / "dataset.yaml").write_text("sample_loader: sample_loader.py:load\npart_filter: 3\n")
    (shards / ".nv-meta" / "sample_loader.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w')")
    assert len(list(open_dataset(shards))) == 8
    assert not (tmp_path / "ran").exists()


def test_the_same_samples_as_energon_itself(shards: Path) -> None:
    energon = pytest.importorskip("megatron.energon", reason="megatron-energon is not installed: compares with it")
    command = [sys.executable, "-m", "megatron.energon.cli.main", "prepare", str(shards), "--non-interactive"]
    options = ["--split-parts", "train:[ab].tar", "--split-parts", "val:c.tar", "--sample-type", "CrudeWebdataset"]
    subprocess.run([*command, *options, "--num-workers", "1"], check=True, capture_output=True)
    settings = {"worker_config": energon.WorkerConfig(rank=0, world_size=1, num_workers=0), "batch_size": None}
    for part, read in (("train", energon.get_train_dataset), ("val", energon.get_val_dataset)):
        extra: dict[str, Any] = {}
        if part == "train":
            extra = {"shuffle_buffer_size": None, "max_samples_per_sequence": None, "repeat": False}
        theirs = {}
        dataset = read(str(shards), split_part=part, task_encoder=_Raw(energon), **settings, **extra)
        for sample in energon.get_loader(dataset):
            theirs[sample.__key__] = sample.parts
        ours = open_dataset(shards, split_part=part)
        found = {s["__key__"]: {name: data for name, data in s.items() if name[:2] != "__"} for s in ours}
        assert found == theirs
        assert len(ours) == {"train": 5, "val": 3}[part]


def _Raw(energon: Any) -> Any:  # noqa: N802 - stands for a class
    """A task encoder that hands on the bytes of every part."""

    @energon.edataclass
    class Parts(energon.Sample):
        parts: dict[str, bytes]

    def cook(sample: dict[str, Any]) -> Any:
        parts = {name.lower(): data for name, data in sample.items() if not name.startswith("__")}
        return Parts(**energon.basic_sample_keys(sample), parts=parts)

    class Encoder(energon.DefaultTaskEncoder):
        decoder = None
        cookers = [energon.Cooker(energon.stateless(cook))]  # noqa: RUF012

    return Encoder()
