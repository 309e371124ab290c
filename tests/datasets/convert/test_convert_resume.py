"""A conversion that is killed at any moment and run again ends in the bytes of an undisturbed one."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from packloom.datasets import open_dataset
from packloom.datasets.convert import ConvertConfig, RunSettings, convert
from packloom.errors import ConfigError, ShardError

Tree = Callable[[Path], dict[str, str]]
NUM_ROWS = 60
CONFIG = ConvertConfig(samples_per_shard=20, max_shard_bytes=10_240)


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """Rows of which every seventh is bad."""
    path = tmp_path / "rows.jsonl"
    rows = [{"question": "q" * n, "answer": "a", "image": "gone.jpg" if n % 7 == 3 else None} for n in range(NUM_ROWS)]
    path.write_text("\n".join(map(json.dumps, rows)))
    return path


@pytest.fixture
def undisturbed(source: Path, tmp_path: Path, tree: Tree) -> dict[str, str]:
    convert(source, tmp_path / "whole", CONFIG)
    return tree(tmp_path / "whole")


def dies_at(step: int, source: Path, target: Path, config: ConvertConfig) -> bool:
    """Convert in a forked process that ends without a word at its n-th step on disk; whether it got that far."""
    child = os.fork()
    if child:
        return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 9
    left = step
    for name in ("fsync", "replace", "write", "utime", "truncate"):
        original = getattr(os, name)

        def counting(*args: Any, original: Any = original, **kwargs: Any) -> Any:
            nonlocal left
            left -= 1
            if left == 0:
                os._exit(9)
            return original(*args, **kwargs)

        setattr(os, name, counting)
    try:
        convert(source, target, config)
    finally:
        os._exit(0)


def test_death_at_every_seventh_step(source: Path, tmp_path: Path, undisturbed: dict[str, str], tree: Tree) -> None:
    assert len([name for name in undisturbed if name.endswith(".tar")]) == 6  # the byte limit cuts each task in two
    steps = 0
    while dies_at(steps + 1, source, tmp_path / f"t{steps}", CONFIG):
        target = tmp_path / f"t{steps}"
        steps += 7
        report = convert(source, target, CONFIG)
        assert (report.num_rows, report.num_samples, report.num_bad) == (60, 51, 9)
        assert tree(target) == undisturbed, steps
    assert steps > 30


def test_killed_again_and_again(source: Path, tmp_path: Path, undisturbed: dict[str, str], tree: Tree) -> None:
    draws = random.Random(7)
    deaths = sum(dies_at(draws.randrange(3, 14), source, tmp_path / "out", CONFIG) for _ in range(8))
    assert deaths > 2
    convert(source, tmp_path / "out", CONFIG)
    assert tree(tmp_path / "out") == undisturbed


def test_a_killed_run_with_workers(tmp_path: Path, tree: Tree) -> None:
    """SIGKILL while two workers write; they end with their parent, and others finish what is left.

    benchmarks/convert_kills.py does it twenty times.
    """
    source = tmp_path / "rows.jsonl"
    source.write_text("\n".join(json.dumps({"question": f"{n}" * 50, "answer": "a" * 500}) for n in range(1500)))
    config = ConvertConfig(samples_per_shard=50)
    code = (
        "from packloom.datasets.convert import ConvertConfig, RunSettings, convert\n"
        "if __name__ == '__main__':\n"
        f"    convert({str(source)!r}, 'out', ConvertConfig(samples_per_shard=50), settings=RunSettings(num_workers=2))"
    )
    script = tmp_path / "script.py"
    script.write_text(code)
    run = subprocess.Popen([sys.executable, str(script)], cwd=tmp_path, start_new_session=True)
    journal = tmp_path / "out/.packloom/convert/progress.jsonl"
    deadline = time.monotonic() + 120
    while not (journal.exists() and journal.stat().st_size > 1000) and time.monotonic() < deadline:
        time.sleep(0.01)
    os.kill(run.pid, signal.SIGKILL)
    assert run.wait() == -signal.SIGKILL
    while _group_lives(run.pid):
        assert time.monotonic() < deadline, "the workers outlive their parent"
        time.sleep(0.01)
    assert not (tmp_path / "out/.packloom/manifest.json").exists()
    done = len(journal.read_text().splitlines())
    report = convert(source, tmp_path / "out", config)
    assert report.num_resumed >= 50 * (done - 1) > 0
    assert report.num_samples == 1500
    convert(source, tmp_path / "whole", config)
    assert tree(tmp_path / "out") == tree(tmp_path / "whole")


def _group_lives(group: int) -> bool:
    try:
        os.killpg(group, 0)
    except ProcessLookupError:
        return False
    return True


def test_a_finished_target_is_verified(source: Path, tmp_path: Path, undisturbed: dict[str, str], tree: Tree) -> None:
    target = tmp_path / "whole"
    report = convert(source, target, CONFIG)
    assert (report.was_finished, report.num_samples, report.num_bad) == (True, 51, 9)
    assert tree(target) == undisturbed
    shard = target / "shard-000002-0001.tar"
    data = bytearray(shard.read_bytes())
    data[700] ^= 1
    shard.write_bytes(data)
    with pytest.raises(ShardError, match=r"1 of 6 shards .*shard-000002-0001\.tar: remove these files"):
        convert(source, target, CONFIG)
    shard.unlink()
    assert convert(source, target, CONFIG).num_resumed == 40
    assert tree(target) == undisturbed


def test_what_is_broken_beside_the_shards_is_made_anew(
    source: Path, tmp_path: Path, undisturbed: dict[str, str], tree: Tree
) -> None:
    target = tmp_path / "whole"
    index = target / ".packloom/shard-000001-0000.tar.index"
    other = target / ".packloom/shard-000000-0000.tar.index"
    quarantine, manifest = target / "quarantine.jsonl", target / ".packloom/manifest.json"
    whole = index.read_bytes()
    contents = {
        index: (b"", whole[:-9], whole[:200] + b"?" + whole[201:], other.read_bytes(), None),
        quarantine: (b"", quarantine.read_bytes()[:-20], None),
        manifest: (b"", b"{}", manifest.read_bytes().replace(b"shard-000001", b"shard-000009"), None),
    }
    for path, faults in contents.items():
        for fault in faults:
            if fault is None:
                path.unlink()
            else:
                path.write_bytes(fault)
            report = convert(source, target, CONFIG)
            assert tree(target) == undisturbed, (path, fault)
            assert (report.num_resumed, dict(report.codes)) == (
                40 if path is index else 60,
                {"convert.missing_file": 9},
            )
            assert report.was_finished == (path is quarantine)


def test_another_plan_is_refused(source: Path, tmp_path: Path, undisturbed: dict[str, str], tree: Tree) -> None:
    target = tmp_path / "whole"
    with pytest.raises(ShardError, match=r"differs from this one in settings.samples_per_shard: 20 → 30"):
        convert(source, target, ConvertConfig(samples_per_shard=30, max_shard_bytes=10_240))
    text = source.read_text()
    source.write_text(text + '\n{"question": "new", "answer": "row"}')
    with pytest.raises(ShardError, match=r"identity: .*num_rows: 60 → 61.*--overwrite"):
        convert(source, target, CONFIG)
    settings = RunSettings(overwrite=True)
    with pytest.raises(ConfigError, match="media root"):  # nothing is removed for a run that cannot start
        convert(source, target, ConvertConfig(media_root="nowhere"), settings=settings)
    dry = RunSettings(overwrite=True, dry_run=True)
    assert convert(source, target, ConvertConfig(samples_per_shard=61), settings=dry).num_rows == 61
    assert tree(target) == undisturbed
    assert convert(source, target, ConvertConfig(samples_per_shard=61), settings=settings).num_rows == 61
    assert len(open_dataset(target)) == 52
    source.write_text(text)
    convert(source, target, CONFIG, settings=settings)
    assert tree(target) == undisturbed


def test_strange_targets_are_refused(source: Path, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    with pytest.raises(ShardError, match="is a file"):
        convert(source, tmp_path / "file", CONFIG)
    other = tmp_path / "other"
    other.mkdir()
    (other / "shard-000000.tar").write_bytes(b"x")
    with pytest.raises(ShardError, match=r"shards of another origin, e.g. shard-000000.tar"):
        convert(source, other, CONFIG)
    with pytest.raises(ShardError, match="lies in the target"):
        convert(source, tmp_path, CONFIG)


def test_two_runs_at_once_are_refused(source: Path, tmp_path: Path) -> None:
    def again(found: object, plan: object) -> None:
        with pytest.raises(ShardError, match="another conversion is writing"):
            convert(source, tmp_path / "out", CONFIG)

    assert convert(source, tmp_path / "out", CONFIG, announce=again).num_samples == 51


def test_a_full_disk_stops_the_run_and_keeps_what_is_done(
    source: Path, tmp_path: Path, undisturbed: dict[str, str], tree: Tree, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = 0

    def full(descriptor: int) -> None:
        nonlocal calls
        calls += 1
        if calls == 9:
            raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", full)
        with pytest.raises(OSError, match="No space left"):
            convert(source, tmp_path / "out", CONFIG)
    assert not [name for name in tree(tmp_path / "out") if "partial" in name]
    report = convert(source, tmp_path / "out", CONFIG)
    assert 0 < report.num_resumed < NUM_ROWS
    assert tree(tmp_path / "out") == undisturbed
