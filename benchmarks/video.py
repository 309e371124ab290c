"""Chats about clips go in; how fast packloom, a Hugging Face collate and a decode-only floor make batches comes out.

``make bench-video`` (or ``python benchmarks/video.py``; the collate needs torchvision, and is listed as not run
without). Qwen2.5-VL, two frames a second, at most 16, one worker. As in throughput.py each contender has a process of
its own, all take turns, and rates are over the seconds behind the first batch: medians of the turns, lowest, highest.

The clips pan over photographs of scikit-image: H.264 with B-frames, 640x360, 24 frames a second, a key frame every two
seconds. ``--clip`` takes files of your own instead.
"""

from __future__ import annotations

import argparse
import io
import statistics
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from pydoc_data.topics import topics
from random import Random
from typing import Any

import av
import numpy as np
from PIL import Image

from contenders.names import VIDEO_CONTENDERS
from packloom.datasets import write_shards
from photo_shards import make_photographs
from throughput import Results, find_processor, measure_all, started

RATE, WIDTH, HEIGHT = 24, 640, 360
OURS, HF, FLOOR = VIDEO_CONTENDERS
GOALS = {HF: 1.0}


def make_clip(photograph: bytes, seconds: float) -> bytes:
    """A slow pan over a photograph."""
    picture = Image.open(io.BytesIO(photograph)).convert("RGB").resize((WIDTH * 3 // 2, HEIGHT * 3 // 2))
    pixels, count, buffer = np.asarray(picture), int(seconds * RATE), io.BytesIO()
    with av.open(buffer, "w", format="mp4") as container:
        stream = container.add_stream("libx264", rate=RATE, options={"g": str(2 * RATE), "preset": "veryfast"})
        stream.width, stream.height, stream.pix_fmt = WIDTH, HEIGHT, "yuv420p"
        for number in range(count):
            top, left = number * (HEIGHT // 2) // count, number * (WIDTH // 2) // count
            shown = np.ascontiguousarray(pixels[top : top + HEIGHT, left : left + WIDTH])
            container.mux(stream.encode(av.VideoFrame.from_ndarray(shown, format="rgb24")))
        container.mux(stream.encode())
    return buffer.getvalue()


def rows(clips: list[bytes], count: int) -> Iterator[dict[str, Any]]:
    """Chats of one question and one answer, of English prose."""
    random, words = Random(0), " ".join(topics.values()).split()
    for number in range(count):
        start = random.randrange(len(words) - 200)
        question, answer = " ".join(words[start : start + 20]), " ".join(words[start + 20 : start + 90])
        content = [{"type": "video", "video": "0.mp4"}, {"type": "text", "text": question}]
        messages = [{"role": "user", "content": content}, {"role": "assistant", "content": answer}]
        yield {"__key__": f"{number:06d}", "json": {"messages": messages}, "0.mp4": clips[number % len(clips)]}


def clips_of(options: argparse.Namespace) -> list[bytes]:
    if options.clip:
        return [path.read_bytes() for path in options.clip]
    photographs = make_photographs()[: options.clips]
    return [make_clip(photograph, seconds=4 + number % 5) for number, photograph in enumerate(photographs)]


def as_table(results: Results) -> list[str]:
    lines = ["| | tokens/s | lowest – highest | samples/s | MB per sample | first batch |", "|---|--:|--:|--:|--:|--:|"]
    for (name, _), turns in results.items():
        rates = [turn["tokens_per_s"] for turn in turns]
        samples, size, first = (
            statistics.median(turn[key] for turn in turns)
            for key in ("samples_per_s", "bytes_per_sample", "first_batch_s")
        )
        lines.append(
            f"| {name} | {statistics.median(rates):,.0f} | {min(rates):,.0f} – {max(rates):,.0f} | {samples:.1f}"
            f" | {size / 1e6:.2f} | {first:.1f} s |"
        )
    return lines


def ratios(results: Results) -> list[str]:
    """packloom over the others, turn by turn, so that both halves of a ratio met the same machine."""
    of = {name: [turn["tokens_per_s"] for turn in turns] for (name, _), turns in results.items()}
    lines = []
    for other in (HF, FLOOR):
        if OURS in of and other in of:
            found = [ours / theirs for ours, theirs in zip(of[OURS], of[other], strict=False)]
            goal = f" (goal: {GOALS[other]} or more)" if other in GOALS else ""
            lines.append(
                f"{OURS} over {other}: {statistics.median(found):.2f}, {min(found):.2f} – {max(found):.2f}{goal}"
            )
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--processor", help="folder of a Qwen2.5-VL processor (default: that of ../shared)")
    parser.add_argument("--clip", type=Path, nargs="+", help="MP4 files in the place of the clips that are made")
    parser.add_argument("--clips", type=int, default=12, help="that are made (default: %(default)s)")
    parser.add_argument("--samples", type=int, default=120, help="of the dataset (default: %(default)s)")
    parser.add_argument("--seconds", type=float, default=6.0, help="of a turn (default: %(default)s)")
    parser.add_argument("--rounds", type=int, default=3, help="turns of each contender (default: %(default)s)")
    parser.add_argument("--limit", type=float, default=240, help="seconds behind which no second turn starts")
    parser.add_argument("--workers", type=int, nargs="+", default=[1], help="(default: 1)")
    options = parser.parse_args()
    begun = time.perf_counter()
    with tempfile.TemporaryDirectory(prefix="packloom-bench-") as name:
        processor, shards = find_processor(options.processor, Path(name)), Path(name) / "shards"
        write_shards(rows(clips_of(options), options.samples), shards, samples_per_shard=30)
        contenders = list(started(shards, processor, list(VIDEO_CONTENDERS)))
        try:
            results = measure_all(contenders, options)
        finally:
            for each in contenders:
                each.close()
    print("\n".join([*as_table(results), "", *ratios(results)]))
    for each in contenders:
        if each.error:
            print(f"not run: {each.name}: {each.error}")
    print(f"\n{time.perf_counter() - begun:.0f} s, {options.rounds} turns of {options.seconds:.0f} s each")


if __name__ == "__main__":
    main()
