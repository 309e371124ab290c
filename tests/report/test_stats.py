"""``stats``: lengths are those that training then sees, no image decoded; steps are those of a real finite run."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

import packloom.task_encoders.media
from packloom.cli import app
from packloom.collates import collate
from packloom.config import DataConfig, DistributionConfig, LoaderConfig, PackingConfig, SourceConfig
from packloom.datasets import write_shards
from packloom.datasets.policy import SkipRecord
from packloom.errors import ConfigError, CookError, ShardError
from packloom.loader import build_loader
from packloom.loader.lengths import Lengths
from packloom.report.spec import DataSpec, EncoderSpec
from packloom.report.stats import measure_dataset
from packloom.report.steps import plan_steps
from packloom.rng import derive
from packloom.task_encoders import TaskEncoder
from packloom.types import Batch, EncodedSample, RawSample, Row


def no_decoding(media: object) -> None:
    raise AssertionError("an image was decoded")


def test_lengths_are_those_of_training(
    clean_spec: DataSpec, encoder_spec: EncoderSpec, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(packloom.task_encoders.media, "decode_rgb", no_decoding)
        lengths = measure_dataset(clean_spec, encoder_spec)
    encoder = TaskEncoder.from_pretrained(encoder_spec.processor)
    seen: dict[str, tuple[int, int, int]] = {}
    for batch in build_loader(clean_spec.path[0], encoder, layout="padded", label_shift="none", epochs=1):
        media = torch.isin(batch["input_ids"], torch.tensor([encoder.media_id])).sum()
        seen[batch["sample_keys"][0]] = batch["input_ids"].shape[1], int(media), batch["num_loss_tokens"]
    columns = (lengths.tokens, lengths.media_tokens, lengths.loss_tokens)
    found = {f"{n:04d}": tuple(map(int, row)) for n, row in enumerate(zip(*columns, strict=True))}
    assert len(seen) == 30
    assert found == seen


def test_command(clean: Path, qwen: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(packloom.task_encoders.media, "decode_rgb", no_decoding)
    arguments = ["stats", str(clean), "--processor", qwen, "--workers", "0", "--pack-length", "64", "--dp-size", "1"]
    result = CliRunner().invoke(app, [*arguments, "--dp-size", "2", "--micro-batch", "4", "--json"])
    assert result.exit_code == 0, result.output
    found = json.loads(result.stdout)
    assert (found["num_samples"], found["is_exact"], found["refused"]) == (30, True, {})
    assert sum(found["histogram"]["counts"]) == 30
    assert found["supervised_share"] == found["supervised_tokens"] / found["tokens"]
    kinds = [(item["layout"], item["dp_size"], item["steps"]) for item in found["steps"]]
    [dp1, dp2, rows1, rows2] = kinds
    assert (rows1, rows2) == (("padded", 1, 8), ("padded", 2, 4))
    assert (dp1[:2], dp2[:2]) == (("packed", 1), ("packed", 2))
    assert dp2[2] == -(-dp1[2] // 2)
    text = CliRunner().invoke(app, arguments).stdout
    for piece in ("30 samples", "samples by tokens", "packs of 64", "Next:"):
        assert piece in text


def test_lengths_are_kept_where_that_is_asked_for(clean: Path, qwen: str, tmp_path: Path) -> None:
    pytest.importorskip("pyarrow")
    arguments = ["stats", str(clean), "--processor", qwen, "--workers", "0", "--cache", str(tmp_path / "c"), "--json"]
    first, again = (json.loads(CliRunner().invoke(app, arguments).stdout) for _ in range(2))
    assert (first.pop("num_encoded"), again.pop("num_encoded")) == (30, 0)
    assert first == again


def test_the_encoder_has_the_settings_of_a_config(
    clean_spec: DataSpec, encoder_spec: EncoderSpec, tmp_path: Path
) -> None:
    config = tmp_path / "data.yaml"
    config.write_text("source: {path: shards}\nsample: {train_terminator: false, max_length: 40}\n")
    plain = measure_dataset(clean_spec, encoder_spec)
    own = measure_dataset(clean_spec, replace(encoder_spec, config=str(config)))
    short = plain.tokens <= 40
    assert own.good.tolist() == short.tolist()
    assert (plain.loss_tokens - own.loss_tokens)[short].tolist() == [1] * int(short.sum())
    assert 0 < short.sum() < 30
    wider = measure_dataset(clean_spec, replace(encoder_spec, config=str(config), max_length=1000))
    assert wider.good.all()  # what is stated beside the config counts


def test_a_weighted_blend_has_no_steps(clean: Path, encoder_spec: EncoderSpec, tmp_path: Path) -> None:
    (tmp_path / "blend.yaml").write_text(
        f"splits: {{train: {{blend: [{{path: {clean}, name: a}}, {{path: {clean}, name: b, weight: 3}}]}}}}\n"
    )
    data = DataSpec(path=(str(tmp_path / "blend.yaml"),))
    with pytest.raises(ConfigError, match=r"Repetitions for the same shares: a 1, b 3$"):
        measure_dataset(data, encoder_spec)


def test_plot(clean: Path, qwen: str, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    arguments = ["stats", str(clean), "--processor", qwen, "--workers", "0", "--plot"]
    for suffix, start in (("png", b"\x89PNG"), ("html", b"<!doctype html>")):
        path = tmp_path / f"stats.{suffix}"
        result = CliRunner().invoke(app, [*arguments, str(path)])
        assert (result.exit_code, path.read_bytes()[: len(start)]) == (0, start), result.output
    assert CliRunner().invoke(app, [*arguments, str(tmp_path / "stats.bmp")]).exit_code != 0
    assert sorted(path.name for path in tmp_path.iterdir()) == ["stats.html", "stats.png"]


def test_without_an_index_the_next_move_is_said(tmp_path: Path, clean: Path, encoder_spec: EncoderSpec) -> None:
    (tmp_path / "shard-000000.tar").write_bytes((clean / "shard-000000.tar").read_bytes())
    with pytest.raises(ShardError, match="packloom index"):
        measure_dataset(DataSpec(path=(str(tmp_path),)), encoder_spec)


# -- steps: the estimate against runs of the real loader ---------------------------------------------------------------


class CountEncoder:
    """A sample is ``n`` tokens; 0 is a bad one."""

    max_length = None

    def encode_sample(self, raw: RawSample) -> EncodedSample:
        size = json.loads(raw["json"])["n"]
        if not size:
            raise CookError("bad", code="cook.text")
        return EncodedSample(
            key=raw["__key__"],
            input_ids=torch.ones(size, dtype=torch.int64),
            loss_mask=torch.ones(size, dtype=torch.bool),
            position_ids=torch.arange(size)[None],
        )

    def batch(self, samples: Sequence[EncodedSample]) -> list[Row]:
        return [Row(sample=sample) for sample in samples]

    def collate(self, rows: Sequence[Row], **settings: Any) -> Batch:
        return collate(rows, pad_id=0, **settings)


SIZES = [derive(n, "size").choice([0, 1, 3, 5, 8, 13, 20, 40]) for n in range(150)]


@pytest.fixture(scope="module")
def counted(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("counted") / "shards"
    write_shards(({"__key__": f"{n:03d}", "json": {"n": size}} for n, size in enumerate(SIZES)), folder)
    return str(folder)


def lengths_of(sizes: Sequence[int], total: int | None = None) -> Lengths:
    tokens = np.array(sizes, dtype=np.int64)
    return Lengths(
        total=total or len(sizes),
        numbers=np.arange(len(sizes)),
        tokens=tokens,
        media_tokens=np.zeros_like(tokens),
        loss_tokens=tokens,
        patches=np.zeros_like(tokens),
        has_media=np.zeros(len(sizes), dtype=bool),
        faults={
            place: SkipRecord(key="", source="", stage="encode", code="cook.text", reason="bad")
            for place, size in enumerate(sizes)
            if not size
        },
    )


@pytest.mark.parametrize("tail", ["pad", "wrap", "drop"])
@pytest.mark.parametrize("layout", ["packed", "padded"])
def test_steps_are_those_of_a_run(counted: str, layout: str, tail: str) -> None:
    for num_lanes, lane_samples in ((96, 1024), (6, 20)):  # one lane, and several
        config = DataConfig(
            source=SourceConfig(path=counted, epochs=1),
            packing=PackingConfig(pack_length=24 if layout == "packed" else None, open_packs=2, segment_multiple=2),
            loader=LoaderConfig(
                layout=layout,
                micro_batch_size=1 if layout == "packed" else 3,
                tail=tail,
                num_lanes=num_lanes,
                min_lane_samples=lane_samples,
                max_consecutive_errors=1000,
            ),
        )
        planned = plan_steps(lengths_of(SIZES), config, (1, 2, 3, 4 if num_lanes == 96 else 6))
        for steps in planned:
            placed = replace(config, distribution=DistributionConfig(dp_rank=0, dp_size=steps.dp_size))
            loader = build_loader(placed, CountEncoder())
            real = list(loader)
            assert (steps.steps, steps.low, steps.high) == (len(real),) * 3, (num_lanes, steps)
            if steps.dp_size == 1 and tail == "pad":
                assert steps.num_samples == sum(batch["source_sample_num"] for batch in real)
                if layout == "packed":
                    assert steps.fill == pytest.approx(loader.metrics()["fill"])


def test_an_estimate_holds_the_truth(counted: str) -> None:
    config = DataConfig(
        source=SourceConfig(path=counted),
        packing=PackingConfig(pack_length=64, open_packs=2),
        loader=LoaderConfig(layout="packed"),
    )
    [exact] = plan_steps(lengths_of(SIZES), config, (1,))
    [guess] = plan_steps(lengths_of(SIZES[::3], total=150), config, (1,))
    assert guess.low < guess.high
    assert guess.low <= exact.steps <= guess.high
    assert guess.low <= guess.steps <= guess.high
    assert exact.num_too_long == 0


def test_what_is_too_long_is_counted(counted: str) -> None:
    config = DataConfig(source=SourceConfig(path=counted), packing=PackingConfig(pack_length=24))
    [steps] = plan_steps(lengths_of(SIZES), config, (1,))
    assert steps.num_too_long == SIZES.count(40)
    assert steps.num_samples == len(SIZES) - SIZES.count(40) - SIZES.count(0)
