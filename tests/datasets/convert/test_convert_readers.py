"""Other readers get from converted shards what the rows say: plain webdataset, and Energon after its ``prepare``."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import webdataset

from packloom.datasets.convert import ConvertConfig, convert

_READ = """
import json, sys
from megatron.energon import DefaultTaskEncoder, SkipSample, WorkerConfig, get_loader, get_train_dataset
from megatron.energon import Cooker, CrudeSample, basic_sample_keys, edataclass, stateless, Sample


@edataclass
class Row(Sample):
    row: object
    media: object


@stateless
def cook(sample):
    media = [bytes(sample[name]).hex() for name in sample if name[0].isdigit()]
    return Row(**basic_sample_keys(sample), row=sample["json"], media=media)


class Encoder(DefaultTaskEncoder):
    cookers = [Cooker(cook)]
    decoder = None

    def batch(self, samples):
        return samples

    def encode_batch(self, batch):
        return batch


config = WorkerConfig(rank=0, world_size=1, num_workers=0)
dataset = get_train_dataset(
    sys.argv[1], worker_config=config, batch_size=1, shuffle_buffer_size=None, max_samples_per_sequence=None,
    task_encoder=Encoder(), repeat=False,
)
found = {}
for batch in get_loader(dataset):
    for sample in batch:
        row = sample.row if isinstance(sample.row, dict) else json.loads(sample.row)
        found[sample.__key__.split("/")[-1]] = [row, sample.media]
print(json.dumps(found))
"""


@pytest.fixture
def shards(llava: Path, image_files: list[Path], tmp_path: Path) -> Path:
    config = ConvertConfig(media_root=str(image_files[0].parent), samples_per_shard=5)
    convert(llava, tmp_path / "shards", config)
    return tmp_path / "shards"


@pytest.fixture
def wanted(rows: list[dict[str, Any]], image_files: list[Path]) -> list[tuple[list[dict[str, str]], list[str]]]:
    media = [[path.read_bytes().hex()] for path in image_files]
    return [(row["conversations"], media[n] if row["image"] else []) for n, row in enumerate(rows)]


def test_plain_webdataset(shards: Path, wanted: list[Any]) -> None:
    tars = [str(path) for path in sorted(shards.glob("*.tar"))]
    found = []
    for sample in webdataset.WebDataset(tars, shardshuffle=False):
        media = [value.hex() for name, value in sample.items() if name[0].isdigit()]
        found.append((json.loads(sample["json"])["conversations"], media))
    assert found == wanted


def test_energon(shards: Path, wanted: list[Any], tmp_path: Path) -> None:
    if importlib.util.find_spec("megatron") is None or importlib.util.find_spec("megatron.energon") is None:
        pytest.skip("needs megatron-energon")
    program = Path(sys.executable).with_name("energon")
    options = ["--non-interactive", "--split-ratio", "1,0,0", "--sample-type", "CrudeWebdataset"]
    subprocess.run([str(program), "prepare", str(shards), *options], check=True, capture_output=True, timeout=120)
    (tmp_path / "read.py").write_text(_READ)
    command = [sys.executable, str(tmp_path / "read.py"), str(shards)]
    run = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert run.returncode == 0, run.stderr
    found = json.loads(run.stdout.splitlines()[-1])
    assert [(row["conversations"], media) for _, (row, media) in sorted(found.items())] == wanted
