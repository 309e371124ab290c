"""A folder of shards goes in; a megatron-energon loader over it comes out, set up as its documentation does.

Energon is no dependency of packloom: ``make bench-loader`` puts it into an environment of its own. Importing this
module without it raises ImportError.
"""

from __future__ import annotations

import subprocess
import sys
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from megatron import energon
from megatron.energon import edataclass

warnings.filterwarnings("ignore", message=".*pin_memory.*")  # Energon always asks for it, with or without a GPU


@edataclass
class JpegSample(energon.Sample):
    """The parts of a sample; ``image`` holds its bytes, or pixels once it is decoded."""

    json: bytes
    image: Any


@energon.stateless
def cook(raw: dict[str, Any]) -> JpegSample:
    """Both parts as they are, in bytes."""
    return JpegSample(**energon.basic_sample_keys(raw), json=raw["json"], image=raw["0.jpg"])


class _Encoder(energon.DefaultTaskEncoder):
    """What both encoders share. Parts stay bytes, unless there is a ``decode``."""

    cookers = [energon.Cooker(cook)]  # noqa: RUF012 - Energon's interface
    decoder = None

    def __init__(self, decode: Callable[[bytes], Any] | None) -> None:
        super().__init__()
        self._decode = decode

    def _decoded(self, sample: JpegSample) -> JpegSample:
        if self._decode is not None:
            sample.image = self._decode(sample.image)
        return sample

    def batch(self, samples: list[JpegSample]) -> list[JpegSample]:
        """A list, since photographs of several sizes cannot be stacked."""
        return samples


class JpegEncoder(_Encoder):
    """Decodes behind the shuffle buffer."""

    @energon.stateless
    def encode_sample(self, sample: JpegSample) -> JpegSample:
        """The sample with its image decoded."""
        return self._decoded(sample)


class PackingEncoder(_Encoder):
    """Packs of a fixed number of samples, chosen while they are bytes and decoded behind that."""

    def __init__(self, decode: Callable[[bytes], Any] | None, pack_size: int) -> None:
        super().__init__(decode)
        self._pack_size = pack_size

    @energon.stateless
    def preencode_sample(self, sample: JpegSample) -> JpegSample:
        """Nothing to do before packing."""
        return sample

    def select_samples_to_pack(self, samples: list[JpegSample]) -> list[list[JpegSample]]:
        """Neighbours."""
        return [samples[start : start + self._pack_size] for start in range(0, len(samples), self._pack_size)]

    @energon.stateless
    def postencode_sample(self, sample: JpegSample) -> JpegSample:
        """The sample with its image decoded."""
        return self._decoded(sample)

    @energon.stateless
    def pack_selected_samples(self, samples: list[JpegSample]) -> JpegSample:
        """One sample that holds all the images."""
        return JpegSample.derive_from(samples[0], json=samples[0].json, image=[sample.image for sample in samples])


def prepare(folder: Path) -> None:
    """Index the shards by Energon's own command."""
    arguments = ["--non-interactive", "--force-overwrite", "--no-progress", "--split-ratio", "1,0,0"]
    arguments += ["--sample-type", "CrudeWebdataset", "--num-workers", "2", str(folder)]
    command = [str(Path(sys.executable).with_name("energon")), "prepare", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"energon prepare failed:\n{done.stdout}\n{done.stderr}")


def training_loader(
    folder: Path,
    decode: Callable[[bytes], Any] | None,
    *,
    num_workers: int,
    buffer: int,
    batch_size: int | None = None,
    packing_buffer: int | None = None,
) -> Any:
    """The savable loader of endless training, shuffled with its buffer; slices of 100 samples are shuffled too.

    With a packing buffer, ``batch_size`` samples make a pack.
    """
    dataset = energon.get_train_dataset(
        str(folder),
        worker_config=energon.WorkerConfig(rank=0, world_size=1, num_workers=num_workers),
        batch_size=None if packing_buffer else batch_size,
        packing_buffer_size=packing_buffer,
        shuffle_buffer_size=buffer,
        max_samples_per_sequence=100,
        task_encoder=PackingEncoder(decode, batch_size or 1) if packing_buffer else JpegEncoder(decode),
    )
    return energon.get_savable_loader(dataset)


def sequential_loader(folder: Path, decode: Callable[[bytes], Any] | None, *, num_workers: int) -> Iterator[Any]:
    """The loader that Energon validates with, which reads in order."""
    dataset = energon.get_val_dataset(
        str(folder),
        split_part="train",
        worker_config=energon.WorkerConfig(rank=0, world_size=1, num_workers=num_workers),
        batch_size=None,
        task_encoder=JpegEncoder(decode),
    )
    return energon.get_loader(dataset)


def restore(loader: Any, state: Any) -> Any:
    """The loader, set to a saved state."""
    loader.restore_state_rank(state)
    return loader
