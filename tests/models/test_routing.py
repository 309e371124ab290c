"""route: which stage reads what, and that no key vanishes."""

from __future__ import annotations

import pytest
import torch

from packloom.collates import CORE_FIELDS, EXTRA_FIELDS, MEDIA_FIELDS
from packloom.errors import BatchError, ConfigError
from packloom.models import route
from packloom.models.routing import with_pixels_on
from packloom.pixels import PIXEL_KEYS
from packloom.types import Batch

PIXELS = {"pixel_values"}
LOSS = {"labels", "loss_mask", "label_shift"}
METADATA = {"source_sample_num", "source_counts", "num_input_tokens", "num_loss_tokens", "sample_keys", "layout"}
EVERY_STAGE = {
    "input_ids",
    "position_ids",
    "attention_mask",
    "padding_mask",
    "pack_segment_ids",
    "cu_seqlens_q",
    "cu_seqlens_kv",
    "cu_seqlens_q_padded",
    "cu_seqlens_kv_padded",
    "max_seqlen_q",
    "max_seqlen_kv",
    "mm_token_type_ids",
    "image_grid_thw",
}
BATCH = {name: torch.zeros(1) for name in EVERY_STAGE | PIXELS | LOSS | METADATA}


@pytest.mark.parametrize(
    ("stage", "keys"),
    [
        ("first", EVERY_STAGE | PIXELS),
        ("middle", EVERY_STAGE),
        ("last", EVERY_STAGE | LOSS),
        ("all", EVERY_STAGE | PIXELS | LOSS),
    ],
)
def test_each_stage_gets_its_fields(stage, keys):
    routed = route(BATCH, stage)
    assert routed.keys() == keys
    assert all(routed[name] is BATCH[name] for name in keys)


def test_every_field_of_the_contract_is_known():
    assert Batch.__annotations__.keys() == BATCH.keys() | set(PIXEL_KEYS)


def test_pixels_that_are_bytes_become_what_the_model_reads():
    table = torch.stack([torch.arange(256.0), -torch.arange(256.0), torch.zeros(256)])
    pixels = torch.tensor([[[[1, 2]], [[3, 4]], [[5, 6]]]], dtype=torch.uint8)  # [P, C, 1, 2]
    batch = {"input_ids": BATCH["input_ids"], "pixel_values": pixels, "pixel_table": table, "pixel_frames": 2}
    for stage in ("first", "all"):
        routed = route(batch, stage)
        assert routed.keys() == {"input_ids", "pixel_values"}
        assert routed["pixel_values"].tolist() == [[1, 2, 1, 2, -3, -4, -3, -4, 0, 0, 0, 0]]
    assert route(batch, "middle").keys() == {"input_ids"}
    moved = with_pixels_on(batch, torch.device("meta"))
    assert (moved["pixel_values"].device.type, moved["input_ids"].device.type) == ("meta", "cpu")


def test_everything_a_collate_can_make_is_known():
    made = {field.name: None for field in (*CORE_FIELDS, *EXTRA_FIELDS, *MEDIA_FIELDS)}
    assert route(made, "all") == made


@pytest.mark.parametrize("stage", ["first", "middle", "last", "all"])
def test_an_unknown_key_is_refused_and_named(stage):
    with pytest.raises(BatchError, match="no stage is known to read 'mystery'"):
        route(BATCH | {"mystery": torch.zeros(1)}, stage)


def test_extra_keys_reach_every_stage():
    batch = BATCH | {"mystery": torch.zeros(1)}
    assert all("mystery" in route(batch, stage, extra=["mystery"]) for stage in ("first", "middle", "last", "all"))
    assert "absent" not in route(BATCH, "all", extra=["absent"])


def test_absent_fields_stay_absent():
    assert route({"input_ids": BATCH["input_ids"], "sample_keys": ["a"]}, "all").keys() == {"input_ids"}


def test_an_unknown_stage_is_refused():
    with pytest.raises(ConfigError, match="stage must be one of first, middle, last, all, got 'second'"):
        route(BATCH, "second")


def test_a_batch_is_a_mapping():
    with pytest.raises(BatchError, match="got list"):
        route([BATCH], "all")
