"""Photographs and chats go in; how fast packloom, its floors and its peers make batches comes out, with the goals.

``make bench-throughput`` (or ``python benchmarks/throughput.py``; contenders that are not installed are listed as not
run). Each contender has a process of its own, with one torch thread per worker; all take turns, so that a busy machine
slows all alike. A turn starts a loader anew: "first batch" is from loading the processor to the first batch in hand,
without imports; rates are over the seconds behind it. Medians over the turns, and the lowest and highest.

The floors read, decode, resize and tokenise in a worker, and give nothing away. ``--write docs`` puts the table and a
plot into docs/performance.md and docs/performance.svg.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from contenders.names import CONTENDERS
from performance_page import as_lines, as_table, write_page
from photo_shards import write_photo_shards

HERE = Path(__file__).resolve().parent
SHARED = HERE.parent.parent / "shared" / "processors"
#: Those that are measured with more than one worker, too.
SCALED = (
    "packloom, torchvision's pixels",
    "floor with torch's resize",
    "HF collate, torchvision",
    "Energon with HF encoder, packing",
)

Figures = dict[str, float]
#: (contender, workers) → one object of figures per turn
Results = dict[tuple[str, int], list[Figures]]


class Contender:
    """A process that measures one contender when asked; ``error`` says why it cannot."""

    def __init__(self, name: str, shards: Path, processor: Path, environment: dict[str, str]) -> None:
        command = [sys.executable, "-m", "contenders.run", name, str(shards), str(processor)]
        self.name = name
        self._log = tempfile.TemporaryFile("w+")  # noqa: SIM115 - it lives as long as the process
        self._process = subprocess.Popen(
            command,
            cwd=HERE,
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            text=True,
        )
        self.error = str(self._answer().get("error", ""))

    def measure(self, *, workers: int, seconds: float) -> Figures | None:
        """One turn; None if it failed, and ``error`` is set."""
        opened(self._process.stdin).write(json.dumps({"workers": workers, "seconds": seconds}) + "\n")
        opened(self._process.stdin).flush()
        answer = self._answer()
        self.error = str(answer.get("error", ""))
        return None if self.error else answer

    def _answer(self) -> dict[str, Any]:
        line = opened(self._process.stdout).readline()
        if line:
            return dict(json.loads(line))
        self._log.seek(0)
        told = [line for line in self._log.read().splitlines() if line.strip()]
        return {"error": told[-1] if told else f"ended with status {self._process.wait()}"}

    def close(self) -> None:
        """End the process."""
        opened(self._process.stdin).close()
        try:
            self._process.wait(timeout=10)
        except subprocess.TimeoutExpired:
            self._process.kill()


def opened(pipe: Any) -> Any:
    if pipe is None:
        raise RuntimeError("the contender's process has no pipe")
    return pipe


def measure_all(contenders: Sequence[Contender], options: argparse.Namespace) -> Results:
    """All turns: each round asks every contender once. Those with one worker come first, so that peaks are theirs."""
    results: Results = {}
    begun = time.perf_counter()
    for workers in options.workers:
        taking_part = [each for each in contenders if workers == min(options.workers) or each.name in SCALED]
        for number in range(options.rounds):
            if number and time.perf_counter() - begun > options.limit:
                break
            # every other round runs backwards, so that nobody always follows the same one
            for each in taking_part if number % 2 == 0 else reversed(taking_part):
                if each.error:
                    continue
                figures = each.measure(workers=workers, seconds=options.seconds)
                said = each.error if figures is None else f"{figures['tokens_per_s']:,.0f} tokens/s"
                print(f"{each.name}, {workers} worker(s), turn {number + 1}: {said}", file=sys.stderr, flush=True)
                if figures is not None:
                    results.setdefault((each.name, workers), []).append(figures)
    return results


def environment() -> dict[str, str]:
    """One thread per process; and where torchvision is there, but its plain import fails, the repair of the tests."""
    variables = {
        **os.environ,
        "OMP_NUM_THREADS": "1",
        "TQDM_DISABLE": "1",
        "TOKENIZERS_PARALLELISM": "false",
        "HF_HUB_OFFLINE": "1",
    }
    if _imports("torchvision", variables):
        return variables
    support = str(HERE.parent / "tests" / "support")
    repaired = {**variables, "PYTHONPATH": os.pathsep.join(filter(None, [support, variables.get("PYTHONPATH")]))}
    return repaired if _imports("torchvision", repaired) else variables


def _imports(module: str, variables: dict[str, str]) -> bool:
    command = [sys.executable, "-c", f"import {module}"]
    return subprocess.run(command, env=variables, capture_output=True, check=False).returncode == 0


def find_processor(given: str | None, target: Path) -> Path:
    """The folder that was named, else that of Qwen2.5-VL in ../shared."""
    if given is not None:
        return Path(given).resolve()
    sys.path.insert(0, str(SHARED))
    try:
        from materialize import materialize  # noqa: PLC0415 - a script beside the repository, which may be absent
    except ImportError:
        raise SystemExit(
            f"name the folder of a Qwen2.5-VL processor by --processor, or put it under {SHARED}"
        ) from None
    return Path(materialize("qwen2_5_vl", target))


def prepare_for_energon(shards: Path) -> None:
    """Where Energon is installed, its own index."""
    try:
        import energon_peer  # noqa: PLC0415 - optional
    except ImportError:
        return
    energon_peer.prepare(shards)


def started(shards: Path, processor: Path, names: Sequence[str]) -> Iterator[Contender]:
    variables = environment()
    for name in names:
        yield Contender(name, shards, processor, variables)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--processor", help="folder of a Qwen2.5-VL processor (default: that of ../shared)")
    parser.add_argument("--samples", type=int, default=2_100, help="of the dataset (default: %(default)s)")
    parser.add_argument("--seconds", type=float, default=3.0, help="of a turn (default: %(default)s)")
    parser.add_argument("--rounds", type=int, default=3, help="turns of each contender (default: %(default)s)")
    parser.add_argument("--limit", type=float, default=240, help="seconds behind which no second turn starts")
    parser.add_argument("--workers", type=int, nargs="+", default=[1, 2], help="(default: 1 2)")
    parser.add_argument("--only", nargs="+", default=list(CONTENDERS), help="contenders by name")
    parser.add_argument("--json", type=Path, help="file for the figures of all turns")
    parser.add_argument("--write", type=Path, help="folder of performance.md, whose table and plot are renewed")
    options = parser.parse_args()
    begun = time.perf_counter()
    with tempfile.TemporaryDirectory(prefix="packloom-bench-") as name:
        processor, shards = find_processor(options.processor, Path(name)), Path(name) / "shards"
        write_photo_shards(shards, options.samples)
        prepare_for_energon(shards)
        for shard in shards.glob("*.tar"):
            shard.read_bytes()  # nobody pays for the disk
        contenders = list(started(shards, processor, options.only))
        try:
            results = measure_all(contenders, options)
        finally:
            for each in contenders:
                each.close()
    missing = {each.name: each.error for each in contenders if each.error}
    if options.json:
        turns = [{"workers": workers, **figures} for (_, workers), found in results.items() for figures in found]
        options.json.write_text(json.dumps({"turns": turns, "not_run": missing}, indent=1), encoding="utf-8")
    print("\n".join([*as_table(results, missing), "", *as_lines(results)]))
    print(f"\n{time.perf_counter() - begun:.0f} s, {options.rounds} turns of {options.seconds:.0f} s each")
    if not results:
        raise SystemExit("no contender could be measured")
    if options.write:
        write_page(options.write, results, missing)


if __name__ == "__main__":
    main()
