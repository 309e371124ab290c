"""A synthetic index goes in; how long it takes to open, and the memory it takes, come out.

``python benchmarks/index_scale.py --shards 10000 --samples 1000``: the manifest is real, the shards are holes in a
file, and all share one index file of true size (two parts per sample). Memory is what is resident beyond that before
opening.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import pickle
import random
import tempfile
import time
from pathlib import Path

from packloom.datasets import open_dataset
from packloom.datasets.epoch_order import EpochOrder
from packloom.datasets.index import Member, make_index
from packloom.datasets.manifest import INDEX_FOLDER, INDEX_SUFFIX, shard_entry, write_manifest

SAMPLE_BYTES = 100_000


def resident_mib() -> float:
    """Resident memory of this process in MiB."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 2**20


def build(folder: Path, num_shards: int, num_samples: int) -> None:
    """Write the manifest, one index file and one hole, and link them under every shard's name."""
    samples = []
    for number in range(num_samples):
        start = number * SAMPLE_BYTES
        noise = random.Random(number).getrandbits(32)
        members = [
            Member("json", start + 512, 900, noise, 0, 0),
            Member("0.jpg", start + 2048, 90_000, noise, 640, 480),
        ]
        samples.append((f"{number:012d}", members))
    hole = folder / "hole"
    hole.touch()
    os.truncate(hole, num_samples * SAMPLE_BYTES)
    status = hole.stat()
    index = make_index(
        samples, shard_bytes=status.st_size, mtime_ns=status.st_mtime_ns, sha256=hashlib.sha256().hexdigest()
    )
    root = folder / INDEX_FOLDER
    root.mkdir()
    first = root / "first"
    first.write_bytes(index.to_bytes())
    entries = []
    for number in range(num_shards):
        name = f"shard-{number:06d}.tar"
        os.symlink(hole, folder / name)  # file systems limit the number of hard links
        os.symlink(first, root / (name + INDEX_SUFFIX))
        entries.append(shard_entry(index, name))
    manifest = write_manifest(str(root), entries)
    print(
        json.dumps(
            {
                "manifest_mib": round(len(manifest.to_json()) / 2**20, 1),
                "index_kib_per_shard": first.stat().st_size // 1024,
            }
        )
    )


def main() -> None:
    """Build, open, look up, and print one line of JSON each."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--shards", type=int, default=10_000)
    parser.add_argument("--samples", type=int, default=1_000, help="per shard")
    parser.add_argument("--lookups", type=int, default=50_000)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="packloom-scale-") as name:
        folder = Path(name)
        build(folder, options.shards, options.samples)
        base, began = resident_mib(), time.perf_counter()
        dataset = open_dataset(folder)
        opened, opened_mib = time.perf_counter() - began, resident_mib() - base
        order = EpochOrder(total=len(dataset), fingerprint=dataset.fingerprint, num_lanes=64)
        began = time.perf_counter()
        for lane in range(0, 64, 8):  # eight lanes in turn, as a worker has them
            positions = order.iterate(lane)
            for _ in range(options.lookups // 8):
                dataset.key(*dataset.locate(next(positions)))
        seconds = time.perf_counter() - began
        for position in random.Random(0).sample(range(len(dataset)), options.lookups // 10):  # worst case: any shard
            dataset.key(*dataset.locate(position))
        result = {
            "samples": len(dataset),
            "open_seconds": round(opened, 3),
            "open_mib": round(opened_mib, 1),
            "after_lookups_mib": round(resident_mib() - base, 1),
            "lookup_us": round(seconds / options.lookups * 1e6, 1),
            "pickle_mib": round(len(pickle.dumps(dataset)) / 2**20, 1),
        }
        print(json.dumps(result))


if __name__ == "__main__":
    main()
