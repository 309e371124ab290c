"""The small parts of the lane loader: parked samples, groupers, fillers, fingerprints, places, costs of a resume."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from packloom.config import DataConfig, DistributionConfig, LoaderConfig, PackingConfig, SampleConfig, SourceConfig
from packloom.errors import ConfigError
from packloom.loader.distribution import Place, find_place
from packloom.loader.feed import DatasetFeed
from packloom.loader.filler import make_filler
from packloom.loader.fingerprint import encoder_fingerprint
from packloom.loader.grouping import PackGrouper, RowGrouper
from packloom.loader.lane_engine import LaneEngine
from packloom.loader.lanes import LaneGrid
from packloom.loader.parked import park, unpark
from packloom.loader.state import seal
from packloom.loader.worker import Plan
from packloom.packing import BestFitPacker, CheckedPacker, Cost, PackLimits
from packloom.task_encoders import TaskEncoder
from packloom.task_encoders.processors import ProcessorParts
from packloom.types import EncodedMedia, EncodedSample, Media


def medium(name: str, data: bytes) -> EncodedMedia:
    return EncodedMedia(media=Media(kind="image", name=name, data=data), height=1, width=1, num_tokens=1, num_patches=4)


def sample(*media: EncodedMedia) -> EncodedSample:
    return EncodedSample(
        key="k",
        input_ids=torch.tensor([151_655, 9, 5]),
        loss_mask=torch.tensor([False, True, True]),
        position_ids=torch.tensor([[0, 1, 2]] * 3),
        token_tensors={"mm_token_type_ids": torch.tensor([1, 0, 0]), "weights": torch.tensor([0.5, 1.0, 1.0])},
        media=media,
    )


def test_a_parked_sample_comes_back_as_it_was() -> None:
    raw = {"__key__": "k", "json": b"{}", "0.jpg": b"image 0", "1.jpg": b"image 1"}
    whole = sample(
        medium("1.jpg", raw["1.jpg"]), medium("image/png", b"from a data uri"), medium("0.jpg", raw["0.jpg"])
    )
    parked = park(whole, raw)
    assert parked.missing == ("1.jpg", "0.jpg")
    assert [item.media.data for item in parked.sample.media] == [b"", b"from a data uri", b""]
    assert [parked.sample.input_ids.dtype, parked.sample.position_ids.dtype] == [torch.int32, torch.uint8]
    back = unpark(parked, {name: raw[name] for name in parked.missing})
    assert back.media == whole.media
    for ours, theirs in zip(
        (back.input_ids, back.loss_mask, back.position_ids, *back.token_tensors.values()),
        (whole.input_ids, whole.loss_mask, whole.position_ids, *whole.token_tensors.values()),
        strict=True,
    ):
        assert ours.dtype == theirs.dtype
        assert torch.equal(ours, theirs)


def test_a_filler_is_a_text_token_without_loss_or_media() -> None:
    filler = make_filler(sample(medium("0.jpg", b"")))
    assert (filler.key, filler.media, filler.num_tokens) == ("", (), 1)
    assert filler.input_ids.tolist() == [9]
    assert filler.loss_mask.tolist() == [False]
    assert filler.position_ids.tolist() == [[0]] * 3
    assert filler.token_tensors["mm_token_type_ids"].tolist() == [0]


def test_a_pack_grouper_goes_on_from_its_state() -> None:
    def grouper() -> PackGrouper:
        return PackGrouper(CheckedPacker(BestFitPacker(PackLimits(10, 20), buffer_size=3), PackLimits(10, 20)))

    costs = [Cost(1 + place * 7 % 9, place % 4) for place in range(40)]
    whole = grouper()
    for stop in range(40):
        again = grouper()
        again.load_state_dict(json.loads(json.dumps(whole.state_dict())))
        assert again.state_dict() == whole.state_dict()
        assert again.waiting == whole.waiting
        draw = 1_000_000 + stop
        assert again.push(draw, costs[stop]) == whole.push(draw, costs[stop])
        assert again.finish() == _copy(grouper(), whole).finish()


def _copy(target: PackGrouper, source: PackGrouper) -> PackGrouper:
    target.load_state_dict(source.state_dict())
    return target


def test_a_row_grouper() -> None:
    grouper = RowGrouper(2, keep_short=True)
    assert [grouper.push(draw, Cost(1)) for draw in (4, 5, 6)] == [[], [[4, 5]], []]
    again = RowGrouper(2, keep_short=False)
    again.load_state_dict(grouper.state_dict())
    assert (again.waiting, again.finish(), again.waiting) == ((6,), [], ())
    assert (grouper.finish(), grouper.waiting) == ([[6]], ())


def test_the_fingerprint_of_an_encoder(processor_dir: Callable[[str], Path], encoder_class: Any) -> None:
    folder = processor_dir("qwen2_5_vl")
    first = encoder_fingerprint(encoder := TaskEncoder.from_pretrained(folder, max_length=256))
    encoder.parts.tokenizer(["a", "b c"], padding=True, truncation=True, max_length=2)  # leaves traces in the tokenizer
    assert encoder_fingerprint(encoder) == first
    assert json.loads(json.dumps(first)) == first

    def changed(parts: ProcessorParts = encoder.parts, **settings: Any) -> set[str]:
        other = type(encoder)(parts, config=SampleConfig(**{"max_length": 256, **settings}))
        return {name for name, value in encoder_fingerprint(other).items() if value != first[name]}

    assert changed() == set()
    assert changed(max_length=255) == {"max_length"}
    assert changed(max_pixels=28 * 28 * 16) == {"max_pixels", "image_processor"}
    backend = "torchvision" if first["pixel_backend"] == "pil" else "pil"
    assert changed(pixels=backend) >= {"pixels", "pixel_backend"}
    template = encoder.parts.chat_template.replace("You are a helpful assistant.", "Be brief.")
    assert changed(replace(encoder.parts, chat_template=template)) == {"chat_template"}
    other = encoder_fingerprint(TaskEncoder.from_pretrained(processor_dir("qwen3_vl"), max_length=256))
    assert {"family", "tokenizer", "image_processor"} <= {name for name in first if first[name] != other[name]}
    assert encoder_fingerprint(encoder_class(7)) == {"class": "fake_encoder.FakeEncoder", "max_length": 7}


def test_places_without_a_group() -> None:
    assert find_place(DistributionConfig()) == Place()
    assert find_place(DistributionConfig(dp_rank=3, dp_size=8)) == Place(dp_rank=3, dp_size=8)
    for fields in ({"dp_rank": 1}, {"dp_size": 2}):
        with pytest.raises(ConfigError, match="state both or none"):
            DistributionConfig(**fields)
    assert Place().vote(True, unanimous=True)


class Endless:
    """Two million samples of one part, made when they are read; a synthetic index."""

    fingerprint = "synthetic"

    def __init__(self) -> None:
        self.reads: Counter[int] = Counter()

    def __len__(self) -> int:
        return 2_000_000

    def locate(self, position: int) -> tuple[int, int]:
        return 0, position

    def shard_path(self, shard: int) -> str:
        return "synthetic.tar"

    def offset(self, shard: int, index: int) -> int | None:
        return None

    def read(self, shard: int, index: int, *, parts: Sequence[str] | None = None) -> dict[str, Any]:
        self.reads[index] += 1
        row = {"n": 3, "token": index}
        return {"__key__": str(index), "__url__": "synthetic.tar", "json": json.dumps(row).encode()}

    def read_many(self, positions: Sequence[int], *, parts: Sequence[str] | None = None) -> list[dict[str, Any]]:
        return [self.read(*self.locate(position), parts=parts) for position in positions]


def engine(encoder: Any, data: Any) -> LaneEngine:
    """One lane over the synthetic samples, in one rank."""
    config = DataConfig(
        source=SourceConfig(path="synthetic"),
        packing=PackingConfig(pack_length=8),
        loader=LoaderConfig(),
    )
    grid = LaneGrid(num_lanes=1)
    return LaneEngine(Plan(config=config, feed=DatasetFeed(data, num_lanes=1), encoder=encoder, grid=grid), Place())


def moved(state: dict[str, Any], distance: int) -> dict[str, Any]:
    """The state as it were after ``distance`` more draws."""
    [lane] = state["lanes"].values()
    draws = [draw + distance for draw in lane["waiting"]["waiting"][0]]
    waiting = {**lane["waiting"], "waiting": [draws, *lane["waiting"]["waiting"][1:]]}
    ready = [[draw + distance for draw in group] for group in lane["ready"]]
    lane = {**lane, "drawn": lane["drawn"] + distance, "waiting": waiting, "ready": ready}
    return seal({**state, "lanes": {"0": lane}})


def test_a_resume_costs_the_same_wherever_it_is(encoder_class: Any) -> None:
    first = engine(encoder_class(), Endless())
    deliveries: Iterator[Any] = first.deliveries()
    for _ in range(100):
        next(deliveries)
    state = first.state_dict()
    [lane] = state["lanes"].values()
    assert len(lane["waiting"]["waiting"][0]) > 20
    costs = []
    for place in (1_000, 1_000_000):
        encoder, data = encoder_class(), Endless()
        again = engine(encoder, data)
        again.load_state_dict(moved(state, place - lane["drawn"]), allow_mismatch=())
        assert (data.reads.total(), encoder.calls.total()) == (0, 0)
        assert next(again.deliveries()).batch["source_sample_num"] == 2
        costs.append((data.reads.total(), encoder.calls["encode"], encoder.calls["load"]))
    assert costs == [(4, 4, 2)] * 2  # the two of the batch, and two that were drawn before a pack had to leave
