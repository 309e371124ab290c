"""A conversion with workers is killed at random moments and run again; how often its bytes are those of a calm run.

``python benchmarks/convert_kills.py [--kills 20] [--rows 4000] [--workers 2] [--seed 0] [--folder DIR]`` builds a Lance
dataset of JPEGs (blob v2), one row in seven of it bad, and converts it undisturbed. Then each trial starts it anew,
kills it with SIGKILL at a random moment after its first write (the run and its workers, the run alone, or one worker,
in turn) up to three times, and lets it end. Prints one JSON line; exit status 1 if a trial ended in other bytes.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from convert import noise

_MOST_KILLS = 3


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, value in (("kills", 20), ("rows", 4000), ("workers", 2), ("seed", 0)):
        parser.add_argument(f"--{name}", type=int, default=value)
    parser.add_argument("--folder", type=Path)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=arguments.folder, prefix="packloom-kills-") as folder:
        found = measure(Path(folder), arguments)
    print(json.dumps(found))
    return int(found["equal"] != found["trials"])


def measure(folder: Path, arguments: argparse.Namespace) -> dict[str, float]:
    source = folder / "data.lance"
    subprocess.run([sys.executable, __file__, "--make", str(source), str(arguments.rows)], check=True)
    calm = folder / "calm"
    span = _writing_seconds(source, calm, arguments.workers)
    wanted, draws = tree(calm), random.Random(arguments.seed)
    trials = kills = equal = amid = 0
    while kills < arguments.kills:
        target = folder / "target"
        for _ in range(draws.randint(1, _MOST_KILLS)):
            killed = kill_once(source, target, arguments.workers, draws.uniform(0, span), trials)
            kills += killed
            amid += killed and (target / ".packloom/convert/progress.jsonl").stat().st_size > 0
        wait(start(source, target, arguments.workers))
        trials += 1
        equal += tree(target) == wanted
        shutil.rmtree(target)
        print(f"trial {trials}: {kills} kills, {equal} equal", file=sys.stderr)
    return {"trials": trials, "kills": kills, "kills_with_finished_tasks": amid, "equal": equal, "writing_s": span}


def start(source: Path, target: Path, workers: int) -> subprocess.Popen[bytes]:
    program = str(Path(sys.executable).with_name("packloom"))
    options = ["--samples-per-shard", "100", "--workers", str(workers)]
    quiet = subprocess.DEVNULL
    return subprocess.Popen(
        [program, "convert", str(source), str(target), *options], start_new_session=True, stdout=quiet, stderr=quiet
    )


def wait(run: subprocess.Popen[bytes]) -> None:
    if run.wait(timeout=600) != 1:  # some rows are quarantined
        raise SystemExit(f"the conversion ended with {run.returncode}")


def kill_once(source: Path, target: Path, workers: int, delay: float, trial: int) -> bool:
    """Whether the run was still going when it was hit."""
    run = start(source, target, workers)
    until_writing(run, target)
    time.sleep(delay)
    if run.poll() is not None:
        return False
    children = [int(pid) for pid in Path(f"/proc/{run.pid}/task/{run.pid}/children").read_text().split()]
    if trial % 3 == 0:
        os.killpg(run.pid, signal.SIGKILL)
    elif trial % 3 == 1 or not children:
        run.kill()
    else:
        os.kill(children[-1], signal.SIGKILL)
    run.wait(timeout=120)
    while group_lives(run.pid):
        time.sleep(0.02)
    return True


def until_writing(run: subprocess.Popen[bytes], target: Path) -> None:
    """Start-up takes longer than all the writing, and there is nothing to destroy in it."""
    journal = target / ".packloom/convert/progress.jsonl"
    begun = time.time()
    while run.poll() is None:
        if journal.exists() and any(path.stat().st_mtime >= begun - 1 for path in target.glob(".*.partial")):
            return
        time.sleep(0.005)


def group_lives(group: int) -> bool:
    try:
        os.killpg(group, 0)
    except ProcessLookupError:
        return False
    return True


def _writing_seconds(source: Path, target: Path, workers: int) -> float:
    run = start(source, target, workers)
    until_writing(run, target)
    begun = time.perf_counter()
    wait(run)
    return round(time.perf_counter() - begun, 2)


def tree(folder: Path) -> dict[str, str]:
    files = [path for path in sorted(folder.rglob("*")) if path.is_file()]
    return {str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest() for path in files}


def make(path: str, num_rows: int) -> None:
    """Runs in a process of its own, since Lance is not opened in one that starts others."""
    import lance  # noqa: PLC0415
    import pyarrow as pa  # noqa: PLC0415

    images = [noise(number)[: 20_000 + 1000 * number] for number in range(8)]
    blobs = lance.blob_array([b"no image" if n % 7 == 3 else images[n % 8] for n in range(num_rows)])
    schema = pa.schema([pa.field("question", pa.string()), pa.field("answer", pa.string()), lance.blob_field("image")])
    table = pa.table([pa.array([f"What is {n}?" for n in range(num_rows)]), ["Noise."] * num_rows, blobs], schema)
    lance.write_dataset(table, path, data_storage_version="2.2", max_rows_per_file=700)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--make"]:
        make(sys.argv[2], int(sys.argv[3]))
    else:
        sys.exit(main())
