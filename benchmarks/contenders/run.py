"""A contender's name and lines of JSON go in, ``{"workers", "seconds"}`` each; a line with what was measured comes out.

``python -m contenders.run NAME SHARDS PROCESSOR`` in the folder of benchmarks. The process stays between measurements,
so that contenders can take turns without loading torch and transformers each time.
"""

from __future__ import annotations

import importlib
import json
import os
import sys
import time
from pathlib import Path
from typing import Any

os.environ["TOKENIZERS_PARALLELISM"] = "false"

import torch

from contenders.names import CONTENDERS, VIDEO_CONTENDERS
from contenders.workload import PACK_LENGTH, Work
from packloom.bench import measure_batches

_READY = "ready"


def serve(name: str, shards: Path, processor: Path) -> None:
    """Answer each line of stdin; a contender that cannot be imported says why and ends."""
    home = {**CONTENDERS, **VIDEO_CONTENDERS}[name]
    try:
        make = getattr(importlib.import_module(f"contenders.{home.module}"), home.function)
        work = Work(shards=shards, processor=processor, num_workers=0)
        make(work)  # what is missing shows here
    except (ImportError, RuntimeError, ValueError, OSError) as error:
        _say({"error": f"{type(error).__name__}: {str(error).splitlines()[0]}"})
        return
    _say({_READY: True})
    for line in sys.stdin:
        order = json.loads(line)
        work = Work(shards=shards, processor=processor, num_workers=order["workers"])
        started = time.perf_counter()
        speed = measure_batches(
            iter(make(work)),
            seconds=order["seconds"],
            name=name,
            started=started,
            room_of=_pack_room if home.is_packed else None,
            cycle=home.cycle,
        )
        _say(speed.as_dict())


def _pack_room(batch: Any) -> int:
    return PACK_LENGTH


def _say(answer: dict[str, Any]) -> None:
    sys.__stdout__.write(json.dumps(answer) + "\n")  # type: ignore[union-attr]
    sys.__stdout__.flush()  # type: ignore[union-attr]


if __name__ == "__main__":
    sys.stdout = sys.stderr  # what libraries print is no answer
    torch.set_num_threads(1)
    serve(sys.argv[1], Path(sys.argv[2]), Path(sys.argv[3]))
