"""Throughput of ``packloom convert`` from Lance, as a ratio to copying the same bytes, and the memory that it takes.

``python benchmarks/convert.py [--rows 1500] [--workers 2] [--folder DIR]`` builds a Lance dataset of images of about
200 KB (blob v2), converts it, and copies the shards that came out with ``cp`` and one fsync per file, which is what the
converter does too (file, then folder, then its journal). The time of starting Python and its packages does not count:
the workers have converted a row each before. Both sides read from the page cache. Prints one JSON line.
"""

from __future__ import annotations

import argparse
import io
import json
import os
import resource
import shutil
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
    parser.add_argument("--rows", type=int, default=1500)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--folder", type=Path)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=arguments.folder, prefix="packloom-bench-") as folder:
        print(json.dumps(measure(Path(folder), arguments.rows, arguments.workers)))


def measure(folder: Path, num_rows: int, num_workers: int) -> dict[str, float]:
    for name, count in (("warm", num_workers), ("data", num_rows)):
        command = [sys.executable, __file__, "--make", str(folder / f"{name}.lance"), str(count)]
        subprocess.run(command, check=True)
    seconds, peak = run(folder, num_workers)
    shards = sorted((folder / "data-out").glob("*.tar"))
    num_bytes = sum(path.stat().st_size for path in shards)
    copying = timed(lambda: copy(shards, folder / "copy"))
    return {
        "gigabytes": round(num_bytes / 1e9, 3),
        "convert_mb_per_s": round(num_bytes / 1e6 / seconds, 1),
        "copy_mb_per_s": round(num_bytes / 1e6 / copying, 1),
        "ratio_to_copy": round(copying / seconds, 3),
        "peak_mb_of_a_worker": round(peak, 1),
    }


def run(folder: Path, num_workers: int) -> tuple[float, float]:
    """(seconds of a conversion, peak of a worker's memory in MB), in a process whose children are the workers only."""
    command = [sys.executable, __file__, "--run", str(folder), str(num_workers)]
    seconds, peak = subprocess.run(command, check=True, capture_output=True, text=True).stdout.split()
    return float(seconds), float(peak)


def run_here(folder: str, num_workers: str) -> None:
    runner = LocalProcesses(int(num_workers))
    settings = RunSettings(runner=runner)

    def converting(name: str, rows: int) -> None:
        config = ConvertConfig(samples_per_shard=rows)
        convert(f"{folder}/{name}.lance", f"{folder}/{name}-out", config, settings=settings, check=cook)

    converting("warm", 1)  # a task per row, so that every worker has to start
    seconds = timed(lambda: converting("data", 100))
    runner.close()
    print(seconds, resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 1024)


def timed(action: object) -> float:
    start = time.perf_counter()
    action()  # type: ignore[operator]
    return time.perf_counter() - start


def copy(shards: list[Path], target: Path) -> None:
    shutil.rmtree(target, ignore_errors=True)
    target.mkdir()
    for shard in shards:
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
    pixels = np.random.default_rng(seed).integers(0, 255, (440, 500, 3), dtype=np.uint8)
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
