"""Throughput of ``packloom convert`` from Lance, as a ratio to copying the same bytes, and the memory that it takes.

``python benchmarks/convert.py [--rows 4000] [--workers 2] [--rounds 3] [--folder DIR]`` builds a Lance dataset of
images of about 200 KB (blob v2), converts it into shards of 250 rows (50 MB), and copies the shards that came out with
``cp`` and one fsync per file. The converter syncs more: each shard, its index, the folder, and its journal. The time of
starting Python and its packages does not count: each worker has converted a row before. Both sides read from the page
cache. Each round converts and then copies; the middle one of the rounds' ratios counts. Prints one JSON line.
"""

from __future__ import annotations

import argparse
import io
import json
import os
import resource
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
from PIL import Image

from packloom.datasets.convert import ConvertConfig, RunSettings, convert
from packloom.datasets.convert.runners import LocalProcesses
from packloom.task_encoders.cookers import cook


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=4000)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--folder", type=Path)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=arguments.folder, prefix="packloom-bench-") as folder:
        print(json.dumps(measure(Path(folder), arguments.rows, arguments.workers, arguments.rounds)))


def measure(folder: Path, num_rows: int, num_workers: int, num_rounds: int) -> dict[str, object]:
    for name, count in (("warm", num_workers), ("data", num_rows)):
        command = [sys.executable, __file__, "--make", str(folder / f"{name}.lance"), str(count)]
        subprocess.run(command, check=True)
    command = [sys.executable, __file__, "--run", str(folder), str(num_workers), str(num_rounds)]
    # in a process whose children are the workers and cp only
    found: dict[str, list[float]] = json.loads(subprocess.run(command, check=True, capture_output=True).stdout)
    num_mb = sum(path.stat().st_size for path in (folder / "copy").glob("*.tar")) / 1e6
    ratios = [copying / converting for copying, converting in zip(found["copy"], found["convert"], strict=True)]
    return {
        "gigabytes": round(num_mb / 1e3, 3),
        "convert_mb_per_s": [round(num_mb / seconds, 1) for seconds in found["convert"]],
        "copy_mb_per_s": [round(num_mb / seconds, 1) for seconds in found["copy"]],
        "ratio_to_copy": round(statistics.median(ratios), 3),
        "peak_mb_of_a_worker": round(found["peak"][0], 1),
    }


def run_here(folder: str, num_workers: str, num_rounds: str) -> None:
    runner = LocalProcesses(int(num_workers))
    settings = RunSettings(runner=runner)
    found: dict[str, list[float]] = {"convert": [], "copy": []}

    def converting(name: str, rows: int) -> None:
        config = ConvertConfig(samples_per_shard=rows)
        convert(f"{folder}/{name}.lance", f"{folder}/{name}-out", config, settings=settings, check=cook)

    meeting = Path(folder, "meeting")
    meeting.mkdir()
    list(runner.run(meet, [(meeting, int(num_workers))] * int(num_workers)))  # starts each of them
    converting("warm", 1)
    for _ in range(int(num_rounds)):
        shutil.rmtree(f"{folder}/data-out", ignore_errors=True)
        os.sync()
        found["convert"].append(timed(lambda: converting("data", 250)))
        shutil.rmtree(Path(folder, "copy"), ignore_errors=True)
        os.sync()
        found["copy"].append(timed(lambda: copy(Path(folder, "data-out"), Path(folder, "copy"))))
    runner.close()
    found["peak"] = [resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 1024]
    print(json.dumps(found))


def meet(place: tuple[Path, int]) -> None:
    """Wait until so many workers are there."""
    folder, count = place
    (folder / str(os.getpid())).touch()
    while len(list(folder.iterdir())) < count:
        time.sleep(0.01)


def timed(action: object) -> float:
    start = time.perf_counter()
    action()  # type: ignore[operator]
    return time.perf_counter() - start


def copy(source: Path, target: Path) -> None:
    target.mkdir()
    for shard in sorted(source.glob("*.tar")):
        subprocess.run(["cp", str(shard), str(target)], check=True)
        descriptor = os.open(target / shard.name, os.O_RDONLY)
        os.fsync(descriptor)
        os.close(descriptor)


def make(path: str, num_rows: int) -> None:
    """Runs in a process of its own, since Lance is not opened in one that starts others."""
    import lance  # noqa: PLC0415
    import pyarrow as pa  # noqa: PLC0415

    images = [noise(number) for number in range(8)]
    schema = pa.schema([pa.field("question", pa.string()), pa.field("answer", pa.string()), lance.blob_field("image")])

    def batches() -> object:
        for first in range(0, num_rows, 50):
            size = min(50, num_rows - first)
            blobs = lance.blob_array([images[(first + n) % len(images)] for n in range(size)])
            yield pa.record_batch([pa.array(["What?"] * size), pa.array(["Noise."] * size), blobs], schema=schema)

    lance.write_dataset(batches(), path, schema=schema, data_storage_version="2.2", max_rows_per_file=2000)


def noise(seed: int) -> bytes:
    """A JPEG of about 200 KB."""
    pixels = np.random.default_rng(seed).integers(0, 255, (480, 540, 3), dtype=np.uint8)
    target = io.BytesIO()
    Image.fromarray(pixels).save(target, "JPEG", quality=85)
    return target.getvalue()


if __name__ == "__main__":
    if sys.argv[1:2] == ["--make"]:
        make(sys.argv[2], int(sys.argv[3]))
    elif sys.argv[1:2] == ["--run"]:
        run_here(*sys.argv[2:])
    else:
        main()
