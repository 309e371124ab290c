"""The demo's samples go in, their lengths come out as a text file: ``python benchmarks/demo_lengths.py FILE``."""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path

from packloom import SampleError, TaskEncoder
from packloom.demo.data import demo_samples
from packloom.demo.processor import build_processor
from packloom.demo.run import MAX_PIXELS


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("file", type=Path)
    parser.add_argument("--samples", type=int, default=2000, help="good samples (default: %(default)s)")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        encoder = TaskEncoder.from_pretrained(build_processor(Path(folder)), max_pixels=MAX_PIXELS)
    lengths = []
    for raw in demo_samples(arguments.samples):
        try:
            lengths.append(encoder.encode_sample(raw).num_tokens)
        except SampleError:
            continue  # damaged on purpose
    arguments.file.write_text("\n".join(map(str, lengths)) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
