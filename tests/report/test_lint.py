"""``lint``: each planted problem is named with its key and reason; damage to shards and index is a finding too."""

from __future__ import annotations

import io
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from PIL import Image
from typer.testing import CliRunner

from packloom.cli import app
from packloom.datasets import build_index, write_shards
from packloom.errors import ShardError
from packloom.report.lint import lint
from packloom.report.samples import Samples
from packloom.report.spec import DataSpec, EncoderSpec

#: Key → kind of each problem of ``planted``.
PLANTED = {
    "bad-json": "cook.json",
    "no-schema": "cook.schema",
    "odd-role": "cook.role",
    "no-file": "cook.image_count",
    "spare-file": "cook.image_count",
    "no-picture": "media.unreadable",
    "cut-picture": "media.unreadable",
    "float-picture": "media.mode",
    "thin-picture": "media.aspect_ratio",
    "no-answer": "mask.no_assistant",
    "forged": "mask.control_token_in_text",
    "too-long": "budget.length",
    "flipped": "read.checksum",
    "twin": "lint.duplicate_key",
    "last": "read.truncated",
}


@pytest.fixture
def planted(tmp_path: Path, make_talk: Callable[..., Any], make_jpeg: Callable[..., bytes]) -> Path:
    """Two good samples among all the bad ones, in three shards."""
    picture, file = make_jpeg(60, 60), io.BytesIO()
    Image.new("F", (60, 60)).save(file, format="TIFF")
    absent = make_talk("no-file", "?", "A.", images=[picture])
    del absent["0.jpg"]
    rows = [
        make_talk("good", "?", "A.", images=[picture]),
        make_talk("twin", "?", "A."),
        {"__key__": "bad-json", "json": b"{nope"},
        {"__key__": "no-schema", "json": {"text": "?"}},
        {"__key__": "odd-role", "json": {"messages": [{"role": "narrator", "content": "?"}]}},
        absent,
        {**make_talk("spare-file", "?", "A."), "9.jpg": picture},
        make_talk("no-picture", "?", "A.", images=[b"<html>404</html>"]),
        make_talk("cut-picture", "?", "A.", images=[make_jpeg(200, 200)[:-400]]),
        make_talk("float-picture", "?", "A.", images=[file.getvalue()]),
        make_talk("thin-picture", "?", "A.", images=[make_jpeg(2, 900)]),
        make_talk("no-answer", "?"),
        make_talk("forged", "<|im_end|>", "A."),
        make_talk("too-long", "?", "word " * 300),
        make_talk("flipped", "FLIP ME", "A."),
        make_talk("twin", "?", "B."),
        make_talk("last", "LAST", "A."),
    ]
    folder = tmp_path / "shards"
    write_shards(rows[:12], folder, samples_per_shard=6)
    write_shards(rows[12:], tmp_path / "more")
    shutil.copy(tmp_path / "more" / "shard-000000.tar", folder / "shard-000002.tar")
    build_index(folder)
    for name, mark, change in (
        ("shard-000002.tar", b"FLIP", lambda data, at: data[:at] + b"S" + data[at + 1 :]),
        ("shard-000002.tar", b"LAST", lambda data, at: data[:at]),
    ):
        data = (folder / name).read_bytes()
        (folder / name).write_bytes(change(data, data.index(mark)))
    return folder


def found(data: Path, encoder: EncoderSpec | None = None) -> dict[str, str]:
    return {finding.key: finding.code for finding in lint(DataSpec(path=(str(data),)), encoder).findings}


def test_each_planted_problem_is_named(planted: Path, qwen: str) -> None:
    arguments = [str(planted), "--processor", qwen, "--max-length", "200", "--workers", "0"]
    result = CliRunner().invoke(app, ["lint", *arguments, "--json"])
    assert result.exit_code == 1
    report = json.loads(result.stdout)
    assert {item["key"]: item["code"] for item in report["findings"]} == PLANTED
    assert (report["num_samples"], report["num_good"]) == (17, 3)  # a twin is good but for its name
    assert len({item["code"] for item in report["kinds"]}) >= 12
    assert all(item["reason"] for item in report["findings"])
    assert all(item["next"] for item in report["kinds"])
    text = CliRunner().invoke(app, ["lint", *arguments]).stdout
    for key, code in PLANTED.items():
        assert key in text
        assert code in text
    assert text.count("Next:") == len(report["kinds"])


def test_without_a_processor(planted: Path) -> None:
    only_with = {"thin-picture", "no-answer", "forged", "too-long"}
    assert found(planted) == {key: code for key, code in PLANTED.items() if key not in only_with}


def test_cut_audio_and_video_are_found_without_a_processor(tmp_path: Path, audio_row, sound) -> None:
    pytest.importorskip("av", reason="PyAV is not installed: reads audio")
    video = {"messages": [{"role": "user", "content": [{"type": "video"}]}, {"role": "assistant", "content": "A."}]}
    rows = [
        audio_row(sound(0.2), key="good"),
        audio_row(sound(0.2)[:1000], key="cut"),
        {"__key__": "page", "json": video, "0.mp4": b"<html>404</html>"},
    ]
    write_shards(rows, tmp_path / "out")
    assert found(tmp_path / "out") == {"cut": "media.truncated", "page": "media.unreadable"}


def test_without_an_index(planted: Path, encoder_spec: EncoderSpec) -> None:
    shutil.rmtree(planted / ".packloom")
    only_with = {"flipped", "too-long"}  # a checksum stands in the index; the length was not limited
    assert found(planted, encoder_spec) == {key: code for key, code in PLANTED.items() if key not in only_with}


def test_a_clean_set(clean: Path, qwen: str) -> None:
    for arguments in ([], ["--processor", qwen]):
        result = CliRunner().invoke(app, ["lint", str(clean), "--workers", "0", *arguments])
        assert (result.exit_code, "30 good" in result.stdout) == (0, True), result.output


def test_an_index_that_fits_no_longer(clean: Path, tmp_path: Path) -> None:
    folder = tmp_path / "shards"
    shutil.copytree(clean, folder)
    shutil.copy(folder / "shard-000000.tar", folder / "shard-000009.tar")
    (folder / "shard-000001.tar").write_bytes(b"")
    report = lint(DataSpec(path=(str(folder),)))
    codes = [(finding.code, Path(finding.key).name) for finding in report.findings]
    assert codes[:2] == [("shard.index", "shards"), ("shard.unusable", "shard-000001.tar")]
    assert codes[2:] == [("lint.duplicate_key", f"{number:04d}") for number in range(10)]
    assert report.num_samples == 30
    assert "packloom index" in report.findings[0].reason


def test_a_shard_that_grew(clean: Path, tmp_path: Path) -> None:
    folder = tmp_path / "shards"
    shutil.copytree(clean, folder)
    with (folder / "shard-000001.tar").open("ab") as file:
        file.write(bytes(512))
    report = lint(DataSpec(path=(str(folder),)))
    assert [finding.code for finding in report.findings] == ["shard.index"]
    assert (report.num_samples, report.num_good) == (30, 20)


def test_workers_share_all_samples(clean_spec: DataSpec) -> None:
    for with_index in (True, False):
        samples = Samples(clean_spec, with_index=with_index)
        for num_workers in (0, 2, 7):
            chunks = samples.chunks(num_workers)
            keys = sorted(item.raw["__key__"] for chunk in chunks for item in samples.read(chunk))
            assert keys == [f"{number:04d}" for number in range(30)]
            assert len(chunks) >= num_workers


@pytest.mark.parametrize("name", ["absent", "absent.tar", "empty", "file.txt", "http://127.0.0.1:1/{0..2}.tar"])
def test_no_dataset_is_an_error_not_a_finding(name: str, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "file.txt").write_text("?")
    with pytest.raises(ShardError):
        lint(DataSpec(path=(name if "://" in name else str(tmp_path / name),)))


def test_a_blend_is_read_leaf_by_leaf(planted: Path, clean: Path, tmp_path: Path) -> None:
    blend = tmp_path / "blend.yaml"
    leaves = "".join(f"    - path: {path}\n      weight: 1\n" for path in (planted, clean))
    blend.write_text(
        "__module__: megatron.energon\n__class__: MetadatasetV2\nsplits:\n  train:\n    blend:\n"
        + leaves.replace("    - ", "      - ").replace("      weight", "        weight")
    )
    report = lint(DataSpec(path=(str(blend),)))
    assert report.num_samples == 17 + 30
    only_with = {"thin-picture", "no-answer", "forged", "too-long", "twin"}  # keys need not differ among leaves
    assert {item.key: item.code for item in report.findings} == {
        key: code for key, code in PLANTED.items() if key not in only_with
    }
